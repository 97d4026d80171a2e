{{/*
The spec of a Ray cluster: one helper for RayCluster, RayJob and RayService.
All take a dict: root; part: ray, rayjob or rayservice (of the component label); groups; other keys depend on the helper.
*/}}

{{/* Labels of Ray's pods. No versions here: a changed template makes KubeRay replace the pods. KubeRay adds ray.io/cluster and others. */}}
{{- define "xcray.ray.podLabels" -}}
{{ include "xcray.selectorLabels" (list .root (printf "%s-%s" .part .role)) }}
app.kubernetes.io/part-of: xcray
{{- with .group.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Clusters that open the job store: drivers of jobs and application replicas, not RayJobs. */}}
{{- define "xcray.ray.opensStore" -}}
{{- if has (printf "%s-%s" .part .role) (list "ray-head" "rayservice-worker") -}}yes{{- end -}}
{{- end -}}

{{/* Clusters that access object storage: drivers and application replicas. */}}
{{- define "xcray.ray.asksObjects" -}}
{{- if has (printf "%s-%s" .part .role) (list "ray-head" "rayjob-head" "rayservice-worker") -}}yes{{- end -}}
{{- end -}}

{{/* Environment of all containers with Ray's processes. KubeRay adds address, token and RAY_AUTH_MODE. */}}
{{- define "xcray.ray.env" -}}
{{- $ray := .root.Values.ray -}}
- name: RAY_USAGE_STATS_ENABLED
  value: "0"
- name: RAY_health_check_initial_delay_ms
  value: "0"
- name: RAY_health_check_period_ms
  value: {{ $ray.healthCheck.periodMs | quote }}
- name: RAY_health_check_timeout_ms
  value: {{ $ray.healthCheck.timeoutMs | quote }}
- name: RAY_health_check_failure_threshold
  value: {{ $ray.healthCheck.failureThreshold | quote }}
- name: RAY_memory_monitor_refresh_ms
  value: {{ $ray.memoryMonitorMs | quote }}
- name: RAY_free_objects_period_milliseconds  # default 1000: freed blocks of rotations would accumulate
  value: "100"
- name: RAY_DEDUP_LOGS
  value: "0"
- name: RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO
  value: "0"
- name: RAY_agent_register_timeout_ms  # default 30000: on a busy machine a node would end because its agents are late
  value: "600000"
- name: RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S  # at SIGTERM; a head is not drained
  value: {{ ternary "0" ($ray.drainSeconds | toString) (eq .role "head") | quote }}
{{- if and $ray.autoscaling.enabled (eq .role "head") }}
- name: XCRAY_RAY_NODE_SECONDS
  value: {{ $ray.autoscaling.nodeSeconds | quote }}
- name: XCRAY_RAY_START_SECONDS
  value: {{ $ray.autoscaling.waitSeconds | quote }}
{{- end }}
{{- if eq (printf "%s-%s" .part .role) "rayservice-worker" }}
{{ include "xcray.ray.serveEnv" . }}
{{- else if include "xcray.ray.opensStore" . }}
{{ include "xcray.env.store" .root }}
{{- else }}
- name: XCRAY_HOME
  value: /var/lib/xcray
- name: HOME
  value: /tmp
{{- end }}
{{- if include "xcray.ray.asksObjects" . }}
{{- include "xcray.env.objects" .root }}
{{- end }}
{{- with $ray.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- with .group.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* requests == limits (QoS class Guaranteed), so that pods are not evicted under pressure. */}}
{{- define "xcray.ray.resources" -}}
{{- range $i, $which := list "requests" "limits" }}
{{- if $i }}
{{ end }}
{{- $which }}:
  cpu: {{ $.cpu | quote }}
  memory: {{ $.memory }}
  ephemeral-storage: {{ $.ephemeralStorage }}
{{- end }}
{{- end -}}

{{/* 32 MiB more than Ray's object store: a memory file system has some overhead, and if it is too small, Ray falls back to disk. */}}
{{- define "xcray.ray.shmSize" -}}
{{- printf "%dMi" (add 32 (div (include "xcray.bytes" .objectStore | int64) 1048576)) -}}
{{- end -}}

{{/* (dict seconds failures) -> a probe of this node's Ray processes. Defined here, because KubeRay's
default probes need wget in the image. */}}
{{- define "xcray.ray.probe" -}}
httpGet:
  path: /api/healthz
  port: 52365
periodSeconds: {{ .seconds }}
timeoutSeconds: 5
failureThreshold: {{ .failures }}
{{- end -}}

{{- define "xcray.ray.volumeMounts" -}}
- name: home
  mountPath: /var/lib/xcray
- name: tmp
  mountPath: /tmp
- name: ray-logs
  mountPath: /tmp/ray
- name: shared-mem
  mountPath: /dev/shm
{{- if include "xcray.ray.opensStore" . }}
{{- with include "xcray.volumeMounts.storeCA" .root }}
{{ . }}
{{- end }}
{{- end }}
{{- if and (eq .part "rayjob") .root.Values.rayJob.dataVolume }}
- name: data
  mountPath: {{ include "xcray.ray.dataPath" .root }}
  readOnly: true
{{- end }}
{{- with .root.Values.ray.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* ray-logs and shared-mem are KubeRay's names: it would add them without a size. */}}
{{- define "xcray.ray.volumes" -}}
- name: home
{{- if and (eq .root.Values.mode "cluster") (not .ownHome) }}
  persistentVolumeClaim:
    claimName: {{ include "xcray.claimName" .root }}
{{- else }}
  emptyDir:
    sizeLimit: {{ .root.Values.storage.home.emptyDirSizeLimit }}
{{- end }}
- name: tmp
  emptyDir:
    sizeLimit: 1Gi
- name: ray-logs
  emptyDir:
    sizeLimit: {{ .group.tmpSizeLimit }}
- name: shared-mem
  emptyDir:
    medium: Memory
    sizeLimit: {{ include "xcray.ray.shmSize" .group }}
{{- if include "xcray.ray.opensStore" . }}
{{- with include "xcray.volumes.storeCA" .root }}
{{ . }}
{{- end }}
{{- end }}
{{- if eq .part "rayjob" }}
{{- with .root.Values.rayJob.dataVolume }}
- name: data
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with .root.Values.ray.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Common pod spec of head and workers. */}}
{{- define "xcray.ray.podBasics" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with include "xcray.imagePullSecrets" .root }}
{{ . }}
{{- end }}
securityContext:
  {{- include "xcray.podSecurityContext" .root | nindent 2 }}
terminationGracePeriodSeconds: {{ .group.terminationGracePeriodSeconds }}
{{- with .group.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .group.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- include "xcray.placement" .group }}
{{- end -}}

{{- define "xcray.ray.podMetadata" -}}
labels:
  {{- include "xcray.ray.podLabels" . | nindent 2 }}
{{- with .group.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Ray's container; KubeRay puts `ulimit; ray start ...` before it, which is process 1, so Ray receives SIGTERM. */}}
{{- define "xcray.ray.container" -}}
image: {{ include "xcray.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
env:
  {{- include "xcray.ray.env" . | nindent 2 }}
{{- if include "xcray.ray.asksObjects" . }}
{{- with include "xcray.envFrom.objects" .root }}
{{ . }}
{{- end }}
{{- end }}
resources:
  {{- include "xcray.ray.resources" .group | nindent 2 }}
securityContext:
  {{- include "xcray.containerSecurityContext" .root | nindent 2 }}
volumeMounts:
  {{- include "xcray.ray.volumeMounts" . | nindent 2 }}
startupProbe:
  {{- include "xcray.ray.probe" (dict "seconds" 5 "failures" 36) | nindent 2 }}
livenessProbe:
  {{- include "xcray.ray.probe" (dict "seconds" 10 "failures" 12) | nindent 2 }}
{{- end -}}

{{/* The autoscaler: the only container with a Kubernetes token. Ray's container, which runs user code, does not mount it. */}}
{{- define "xcray.ray.autoscaler" -}}
{{- with .root.Values.ray.autoscaling -}}
enableInTreeAutoscaling: {{ .enabled }}
{{- if .enabled }}
autoscalerOptions:
  version: v2
  idleTimeoutSeconds: {{ .idleTimeoutSeconds }}
  upscalingMode: {{ .upscalingMode }}
  imagePullPolicy: {{ $.root.Values.image.pullPolicy }}
  env:
    - name: HOME
      value: /tmp
    - name: RAY_USAGE_STATS_ENABLED
      value: "0"
  resources:
    {{- toYaml .resources | nindent 4 }}
  securityContext:
    {{- include "xcray.containerSecurityContext" $.root | nindent 4 }}
  volumeMounts:
    - name: tmp
      mountPath: /tmp
    - name: ray-logs
      mountPath: /tmp/ray
    - name: kube-api-access
      mountPath: /var/run/secrets/kubernetes.io/serviceaccount
      readOnly: true
{{- end }}
{{- end }}
{{- end -}}

{{- define "xcray.ray.head" -}}
{{- $head := .root.Values.ray.head -}}
{{- $here := merge (dict "role" "head" "group" $head) . -}}
serviceType: ClusterIP
enableIngress: false
rayStartParams:
  {{- $params := dict "num-cpus" "0" "dashboard-host" "0.0.0.0" "metrics-export-port" "8080" "object-store-memory" (include "xcray.bytes" $head.objectStore) }}
  {{- toYaml (merge (deepCopy $head.rayStartParams) $params) | nindent 2 }}
template:
  metadata:
    {{- include "xcray.ray.podMetadata" $here | nindent 4 }}
  spec:
    serviceAccountName: {{ if .root.Values.ray.autoscaling.enabled }}{{ include "xcray.ray.serviceAccountName" .root }}{{ else }}{{ include "xcray.serviceAccountName" .root }}{{ end }}
    {{- include "xcray.ray.podBasics" $here | nindent 4 }}
    containers:
      - name: ray-head
        {{- include "xcray.ray.container" $here | nindent 8 }}
        readinessProbe:
          {{- include "xcray.ray.probe" (dict "seconds" 5 "failures" 3) | nindent 10 }}
        ports:
          - name: gcs-server
            containerPort: 6379
            protocol: TCP
          - name: dashboard
            containerPort: 8265
            protocol: TCP
          - name: metrics
            containerPort: 8080
            protocol: TCP
          - name: as-metrics
            containerPort: 44217
            protocol: TCP
          - name: dash-metrics
            containerPort: 44227
            protocol: TCP
    volumes:
      {{- include "xcray.ray.volumes" $here | nindent 6 }}
      {{- if .root.Values.ray.autoscaling.enabled }}
      - name: kube-api-access  # the default token mount of Kubernetes
        projected:
          defaultMode: 0440
          sources:
            - serviceAccountToken:
                path: token
                expirationSeconds: 3607
            - configMap:
                name: kube-root-ca.crt
                items:
                  - key: ca.crt
                    path: ca.crt
            - downwardAPI:
                items:
                  - path: namespace
                    fieldRef:
                      fieldPath: metadata.namespace
      {{- end }}
{{- end -}}

{{/* (dict root part name group) -> one worker group. */}}
{{- define "xcray.ray.worker" -}}
{{- $here := merge (dict "role" "worker") . -}}
{{- $scales := .root.Values.ray.autoscaling.enabled -}}
groupName: {{ .name }}
{{- if $scales }}
minReplicas: {{ int .group.minReplicas }}
maxReplicas: {{ int .group.maxReplicas }}
{{- with .group.idleTimeoutSeconds }}
idleTimeoutSeconds: {{ int . }}
{{- end }}
{{- else }}
replicas: {{ int .group.replicas }}
minReplicas: {{ int .group.replicas }}
maxReplicas: {{ int .group.replicas }}
{{- end }}
{{- with int .group.priority }}
priority: {{ . }}
{{- end }}
{{- if .group.spot }}
labels:
  ray.io/market-type: spot
{{- end }}
rayStartParams:
  {{- $params := dict "metrics-export-port" "8080" "object-store-memory" (include "xcray.bytes" .group.objectStore) }}
  {{- with .group.rayResources }}
  {{- $_ := set $params "resources" (printf "'%s'" (toJson .)) }}
  {{- end }}
  {{- toYaml (merge (deepCopy .group.rayStartParams) $params) | nindent 2 }}
template:
  metadata:
    {{- include "xcray.ray.podMetadata" $here | nindent 4 }}
  spec:
    serviceAccountName: {{ include "xcray.serviceAccountName" .root }}
    {{- include "xcray.ray.podBasics" $here | nindent 4 }}
    {{- if eq .part "rayservice" }}
    {{- include "xcray.ray.pullContainers" .root | nindent 4 }}
    {{- end }}
    containers:
      - name: ray-worker
        {{- include "xcray.ray.container" $here | nindent 8 }}
        readinessProbe:
          {{- if eq .part "rayservice" }}
          {{- include "xcray.ray.serveProbe" . | nindent 10 }}
          {{- else }}
          {{- include "xcray.ray.probe" (dict "seconds" 5 "failures" 3) | nindent 10 }}
          {{- end }}
        ports:
          - name: metrics
            containerPort: 8080
            protocol: TCP
          {{- if eq .part "rayservice" }}
          - name: serve
            containerPort: 8000
            protocol: TCP
          {{- end }}
    volumes:
      {{- include "xcray.ray.volumes" $here | nindent 6 }}
{{- end -}}

{{/* (dict root part groups ownHome recreate) -> the spec of a RayCluster. */}}
{{- define "xcray.ray.clusterSpec" -}}
{{- $given := . -}}
{{- $ray := .root.Values.ray -}}
rayVersion: {{ $ray.version | quote }}
authOptions:
  mode: token
  {{- with $ray.auth.existingSecret }}
  secretName: {{ . }}
  {{- end }}
{{- if .recreate }}
upgradeStrategy:
  type: {{ $ray.upgradeStrategy }}
{{- end }}
{{- if and $ray.gcsFaultTolerance.enabled (ne .part "rayjob") }}
{{- with $ray.gcsFaultTolerance }}
gcsFaultToleranceOptions:
  redisAddress: {{ .redisAddress | quote }}
  {{- with .redisUsername }}
  redisUsername:
    value: {{ . | quote }}
  {{- end }}
  redisPassword:
    valueFrom:
      secretKeyRef:
        name: {{ .existingSecret }}
        key: {{ .secretKey }}
  {{- if eq $given.part "ray" }}
  externalStorageNamespace: {{ .externalStorageNamespace | default (printf "%s-%s" $given.root.Release.Namespace (include "xcray.ray.clusterName" $given.root)) }}
  {{- end }}
{{- end }}
{{- end }}
{{ include "xcray.ray.autoscaler" . }}
headGroupSpec:
  {{- include "xcray.ray.head" . | nindent 2 }}
workerGroupSpecs:
  {{- range $name, $group := include "xcray.ray.groups" (list .root .groups) | fromJson }}
  - {{ include "xcray.ray.worker" (merge (dict "name" $name "group" $group) $given) | nindent 4 | trim }}
  {{- end }}
{{- end -}}

{{/* Kueue's labels of the objects that it admits. Kueue alone sets `suspend`: it is not in the manifest, because otherwise each upgrade
would stop a running cluster. */}}
{{- define "xcray.ray.kueueLabels" -}}
{{- with .Values.kueue -}}
{{- if .enabled -}}
kueue.x-k8s.io/queue-name: {{ .queueName }}
{{- with .priorityClass }}
kueue.x-k8s.io/priority-class: {{ . }}
{{- end }}
{{- end -}}
{{- end -}}
{{- end -}}
