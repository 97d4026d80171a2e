{{/*
Ray, as the rest of the chart sees it.
*/}}

{{/* The RayCluster's name; KubeRay calls the head's Service NAME-head-svc. */}}
{{- define "xcray.ray.clusterName" -}}
{{- printf "%s-ray" (include "xcray.fullname" .) -}}
{{- end -}}

{{/* The Secret with Ray's token, under the key auth_token. */}}
{{- define "xcray.ray.tokenSecretName" -}}
{{- printf "%s-ray-token" (include "xcray.fullname" .) -}}
{{- end -}}

{{/* Environment with which API and runner find the cluster; begins with a newline, or is empty. */}}
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
{{- end }}
{{- end -}}

{{- define "xcray.ray.clientVolumeMounts" -}}
{{- if .Values.ray.enabled }}
- name: ray-token
  mountPath: /run/secrets/xcray-ray
  readOnly: true
{{- end }}
{{- end -}}

{{/* What of Ray is refused. */}}
{{- define "xcray.ray.refuse" -}}
{{- if and .Values.ray.enabled (ne .Values.mode "cluster") -}}
{{- fail "ray.enabled needs mode=cluster: trainings on Ray share PostgreSQL and a home that all pods mount" -}}
{{- end -}}
{{- end -}}
