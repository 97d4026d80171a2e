{{/*
Helpers for the pods of API and runner. Common helpers are in _helpers.tpl.
*/}}

{{/* Nodes, taints, affinity, from the values of a component. */}}
{{- define "xcray.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* (list $ "api") -> pods spread evenly over nodes and zones, if possible. */}}
{{- define "xcray.spread" -}}
{{- $root := . -}}
{{- $rules := list -}}
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" -}}
{{- $labels := dict "matchLabels" (include "xcray.selectorLabels" $root | fromYaml) -}}
{{- $rule := dict "topologyKey" . "maxSkew" 1 "whenUnsatisfiable" "ScheduleAnyway" "labelSelector" $labels -}}
{{- $rules = append $rules (set $rule "matchLabelKeys" (list "pod-template-hash")) -}}
{{- end -}}
{{- toYaml $rules -}}
{{- end -}}

{{/* Resources of a container -> its cores: the limit, otherwise the request, never the cores of the node. */}}
{{- define "xcray.coresOf" -}}
{{- $limits := .limits | default dict -}}
{{- $requests := .requests | default dict -}}
{{- include "xcray.cores" (get $limits "cpu" | default (get $requests "cpu") | default "1") -}}
{{- end -}}

{{/* Current number of API replicas in the cluster; empty on a first install, and if the cluster cannot be queried. With the autoscaler,
an upgrade writes this number again, because a field removed from a manifest is reset to 1 until the autoscaler runs. */}}
{{- define "xcray.api.running" -}}
{{- $there := lookup "apps/v1" "Deployment" .Release.Namespace (printf "%s-api" (include "xcray.fullname" .)) | default dict -}}
{{- $spec := get $there "spec" | default dict -}}
{{- if hasKey $spec "replicas" -}}{{ int $spec.replicas }}{{- end -}}
{{- end -}}

{{/* Seconds until an API pod is killed: drain, grace and closing; with jobs, also requeueing. */}}
{{- define "xcray.api.terminationGrace" -}}
{{- $needed := add (ceil .Values.api.drainSeconds | int) (int .Values.api.graceSeconds) -}}
{{- .Values.api.terminationGracePeriodSeconds | default (add $needed (ternary 60 15 (eq .Values.mode "all-in-one"))) -}}
{{- end -}}

{{/* Models to load before a pod is ready, as JSON: all pulled models and those in `preload`. */}}
{{- define "xcray.preload" -}}
{{- $models := list -}}
{{- if eq .Values.mode "serving" -}}
{{- range .Values.api.models -}}
{{- if and .name (eq (.tenant | default "default") "default") -}}
{{- $models = append $models .name -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- concat $models .Values.api.preload | uniq | toJson -}}
{{- end -}}

{{/* Init containers of the API: pull models (mode serving), then add the admin key. */}}
{{- define "xcray.initContainers" -}}
{{- $containers := list -}}
{{- if eq .Values.mode "serving" -}}
{{- range $i, $model := .Values.api.models -}}
{{- $containers = append $containers (include "xcray.pullContainer" (list $ $i $model)) -}}
{{- end -}}
{{- end -}}
{{- if include "xcray.adminSecretName" . -}}
{{- $containers = append $containers (include "xcray.keyContainer" .) -}}
{{- end -}}
{{- join "\n" $containers -}}
{{- end -}}

{{/* (list $ 0 model) -> the init container that pulls a model. */}}
{{- define "xcray.pullContainer" -}}
{{- $root := index . 0 -}}
{{- $model := index . 2 -}}
- name: pull-{{ index . 1 }}
  image: {{ include "xcray.image" $root }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  command: [xcray, models, pull]
  args:
    - {{ $model.uri | quote }}
    {{- range $option := list "name" "sha256" "tenant" }}
    {{- with get $model $option }}
    - --{{ $option }}={{ . }}
    {{- end }}
    {{- end }}
    {{- range $model.aliases }}
    - --alias={{ . }}
    {{- end }}
  env:
    - name: XCRAY_HOME
      value: /var/lib/xcray
    - name: HOME
      value: /tmp
    {{- include "xcray.env.objects" $root | trimPrefix "\n" | nindent 4 }}
  {{- with include "xcray.envFrom.objects" $root }}
  {{- . | nindent 2 }}
  {{- end }}
  resources:
    {{- toYaml $root.Values.api.resources | nindent 4 }}
  securityContext:
    {{- include "xcray.containerSecurityContext" $root | nindent 4 }}
  volumeMounts:
    {{- include "xcray.volumeMounts.base" $root | nindent 4 }}
{{- end -}}
