{{/*
Ray helpers for the rest of the chart: its address, its token, rejected values.
*/}}

{{/* The RayCluster's name; KubeRay calls the head's Service NAME-head-svc. */}}
{{- define "xcray.ray.clusterName" -}}
{{- printf "%s-ray" (include "xcray.fullname" .) -}}
{{- end -}}

{{/* The Ray clusters of a release, by the first half of their pods' components, as JSON: ray (RayCluster), rayjob, rayservice. */}}
{{- define "xcray.ray.parts" -}}
{{- $parts := list -}}
{{- range $part, $on := dict "ray" .Values.ray.enabled "rayjob" .Values.rayJob.enabled "rayservice" .Values.rayService.enabled -}}
{{- if $on -}}
{{- $parts = append $parts $part -}}
{{- end -}}
{{- end -}}
{{- toJson $parts -}}
{{- end -}}

{{/* Directory of the data sets of a RayJob: in the home directory, or in a separate volume. */}}
{{- define "xcray.ray.dataPath" -}}
{{- ternary "/var/lib/xcray-data" "/var/lib/xcray" (not (empty .Values.rayJob.dataVolume)) -}}
{{- end -}}

{{/* The Secret with Ray's token, under the key auth_token: the configured Secret, or KubeRay's, which has the name of the cluster. */}}
{{- define "xcray.ray.tokenSecretName" -}}
{{- .Values.ray.auth.existingSecret | default (include "xcray.ray.clusterName" .) -}}
{{- end -}}

{{/* Environment with the address of the cluster; begins with a newline, or is empty. */}}
{{- define "xcray.ray.clientEnv" -}}
{{- if .Values.ray.enabled }}
- name: XCRAY_RAY_ADDRESS
  value: {{ include "xcray.ray.clusterName" . }}-head-svc:6379
- name: XCRAY_RAY_DASHBOARD
  value: http://{{ include "xcray.ray.clusterName" . }}-head-svc:8265
- name: XCRAY_RAY_TOKEN_PATH
  value: /run/secrets/xcray-ray/auth_token
- name: RAY_AUTH_MODE
  value: token
{{- end }}
{{- end -}}

{{- define "xcray.ray.clientVolumes" -}}
{{- if .Values.ray.enabled }}
- name: ray-token
  secret:
    secretName: {{ include "xcray.ray.tokenSecretName" . }}
    defaultMode: 0440
    items:
      - key: auth_token
        path: auth_token
{{- end }}
{{- end -}}

{{- define "xcray.ray.clientVolumeMounts" -}}
{{- if .Values.ray.enabled }}
- name: ray-token
  mountPath: /run/secrets/xcray-ray
  readOnly: true
{{- end }}
{{- end -}}

{{/* The ServiceAccount of heads with an autoscaler: KubeRay binds its Role (pods and rayclusters of the namespace) to it. */}}
{{- define "xcray.ray.serviceAccountName" -}}
{{- printf "%s-ray-head" (include "xcray.fullname" .) -}}
{{- end -}}

{{/* 512Mi or 2Gi -> bytes. */}}
{{- define "xcray.bytes" -}}
{{- $number := regexFind "^[0-9]+" . | int64 -}}
{{- mul $number (ternary 1073741824 1048576 (hasSuffix "Gi" .)) -}}
{{- end -}}

{{/* (list $ groups) -> the enabled worker groups as JSON, each with all its keys. If no groups are given: those of `ray`. */}}
{{- define "xcray.ray.groups" -}}
{{- $root := index . 0 -}}
{{- $groups := dict -}}
{{- range $name, $given := (index . 1 | default $root.Values.ray.workerGroups) -}}
{{- if and (not (kindIs "invalid" $given)) (ne (get $given "enabled" | toString) "false") -}}
{{- $_ := set $groups $name (mergeOverwrite (deepCopy $root.Values.ray.workerDefaults) (omit $given "enabled")) -}}
{{- end -}}
{{- end -}}
{{- toJson $groups -}}
{{- end -}}

{{/* (list $ "ray.workerGroups" groups) -> reject invalid groups. */}}
{{- define "xcray.ray.refuseGroups" -}}
{{- $root := index . 0 -}}
{{- $where := index . 1 -}}
{{- $groups := include "xcray.ray.groups" (list $root (index . 2)) | fromJson -}}
{{- if not $groups -}}
{{- fail (printf "%s: no worker group is enabled: define one, like {general: {}}" $where) -}}
{{- end -}}
{{- range $name, $group := $groups -}}
{{- if gt (int $group.minReplicas) (int $group.maxReplicas) -}}
{{- fail (printf "%s.%s: minReplicas is above maxReplicas" $where $name) -}}
{{- end -}}
{{- if and $root.Values.ray.autoscaling.enabled (eq (int $group.maxReplicas) 0) -}}
{{- fail (printf "%s.%s: maxReplicas is 0: disable the group with enabled=false" $where $name) -}}
{{- end -}}
{{- if ge (include "xcray.bytes" $group.objectStore | int64) (include "xcray.bytes" $group.memory | int64) -}}
{{- fail (printf "%s.%s: objectStore is a part of memory and must be smaller" $where $name) -}}
{{- end -}}
{{- if ge (int $root.Values.ray.drainSeconds) (int $group.terminationGracePeriodSeconds) -}}
{{- fail (printf "%s.%s: terminationGracePeriodSeconds must be more than ray.drainSeconds, or pods are killed while they drain" $where $name) -}}
{{- end -}}
{{- end -}}
{{- if and $root.Values.kueue.enabled (gt (len $groups) 7) -}}
{{- fail (printf "%s: Kueue admits at most 8 pod sets: the head and 7 groups" $where) -}}
{{- end -}}
{{- end -}}

{{/* Rejected Ray values, each with a fix. Always called once. */}}
{{- define "xcray.ray.refuse" -}}
{{- $ray := .Values.ray -}}
{{- if and $ray.enabled (ne .Values.mode "cluster") -}}
{{- fail "ray.enabled needs mode=cluster: API, runners and Ray share one home directory" -}}
{{- end -}}
{{- if or $ray.enabled .Values.rayJob.enabled .Values.rayService.enabled -}}
{{- if not (semverCompare ">=2.56.0" $ray.version) -}}
{{- fail (printf "ray.version=%s: token authentication needs 2.52, priorities of worker groups need 2.56" $ray.version) -}}
{{- end -}}
{{- if ge (include "xcray.bytes" $ray.head.objectStore | int64) (include "xcray.bytes" $ray.head.memory | int64) -}}
{{- fail "ray.head: objectStore is a part of memory and must be smaller" -}}
{{- end -}}
{{- with $ray.gcsFaultTolerance -}}
{{- if and .enabled (not .redisAddress) -}}
{{- fail "ray.gcsFaultTolerance.enabled needs redisAddress, like redis.example:6379" -}}
{{- end -}}
{{- if and .enabled (not .existingSecret) -}}
{{- fail "ray.gcsFaultTolerance.enabled needs existingSecret with the password: a client of a Redis without a password can run code in the cluster" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .Values.kueue.enabled -}}
{{- if not .Values.kueue.queueName -}}
{{- fail "kueue.enabled needs kueue.queueName, the LocalQueue of this namespace" -}}
{{- end -}}
{{- if $ray.autoscaling.enabled -}}
{{- fail "kueue.enabled needs ray.autoscaling.enabled=false: Kueue admits clusters of fixed size only" -}}
{{- end -}}
{{- if not (or $ray.enabled .Values.rayJob.enabled) -}}
{{- fail "kueue.enabled needs ray.enabled or rayJob.enabled: there is nothing to queue" -}}
{{- end -}}
{{- end -}}
{{- if $ray.enabled -}}
{{- include "xcray.ray.refuseGroups" (list . "ray.workerGroups" dict) -}}
{{- end -}}
{{- if .Values.rayJob.enabled -}}
{{- include "xcray.ray.refuseGroups" (list . "rayJob.workerGroups" .Values.rayJob.workerGroups) -}}
{{- if not (or .Values.rayJob.dataset .Values.rayJob.dataVolume .Values.rayJob.entrypoint) -}}
{{- fail "rayJob.enabled needs rayJob.dataset, a folder in the home directory like data/news, or rayJob.dataVolume, a volume with data" -}}
{{- end -}}
{{- if contains "://" .Values.rayJob.dataset -}}
{{- fail (printf "rayJob.dataset=%s: trainings map a data set's files, so it must be a folder. Mount the bucket with rayJob.dataVolume (a CSI driver for object storage, a claim, NFS), or copy the folder into the home directory and set its path there, like data/news" .Values.rayJob.dataset) -}}
{{- end -}}
{{- if and (ne .Values.mode "cluster") (not .Values.rayJob.entrypoint) -}}
{{- fail "rayJob.enabled needs mode=cluster: head and workers share one home directory; or set an entrypoint that does not need it" -}}
{{- end -}}
{{- end -}}
{{- if .Values.rayService.enabled -}}
{{- include "xcray.ray.refuseGroups" (list . "rayService.workerGroups" .Values.rayService.workerGroups) -}}
{{- if ne (include "xcray.storeType" .) "postgresql" -}}
{{- fail "rayService.enabled needs PostgreSQL (store.type=postgresql, store.existingSecret): its replicas share keys and limits" -}}
{{- end -}}
{{- if gt (int .Values.rayService.minReplicas) (int .Values.rayService.maxReplicas) -}}
{{- fail "rayService.minReplicas is above rayService.maxReplicas" -}}
{{- end -}}
{{- if and (ne .Values.mode "cluster") (not .Values.rayService.models) -}}
{{- fail "rayService.enabled needs rayService.models to pull, or mode=cluster, whose home directory has models" -}}
{{- end -}}
{{- end -}}
{{- end -}}
