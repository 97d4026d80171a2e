{{/*
Additional helpers for the pods of a RayService: they serve predictions, so they need models and keys.
*/}}

{{/* RayService: environment of the pods with application replicas. */}}
{{- define "xcray.ray.serveEnv" -}}
{{- $root := .root -}}
{{- $name := printf "%s-serve-serve-svc" (include "xcray.fullname" $root) -}}
{{- $space := printf "%s.%s" $name $root.Release.Namespace -}}
{{- $hosts := list "$(POD_IP)" $name $space (printf "%s.svc" $space) (printf "%s.svc.%s" $space $root.Values.global.clusterDomain) -}}
{{ include "xcray.env.store" $root }}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: XCRAY_ALLOWED_HOSTS
  value: {{ concat $hosts $root.Values.api.allowedHosts | uniq | toJson | squote }}
{{- if $root.Values.auth.insecureDev }}
- name: XCRAY_INSECURE_DEV
  value: "true"
{{- else }}
- name: XCRAY_BEHIND_PROXY
  value: "true"
{{- end }}
{{- with $root.Values.rayService.models }}
{{- $names := list }}
{{- range . }}
{{- $names = append $names .name }}
{{- end }}
- name: XCRAY_PRELOAD
  value: {{ toJson $names | squote }}
{{- end }}
{{- end -}}

{{/* RayService: a pod is ready when Serve's proxy on it is. KubeRay's default probe needs wget in the image. */}}
{{- define "xcray.ray.serveProbe" -}}
httpGet:
  path: /-/healthz
  port: 8000
periodSeconds: 5
timeoutSeconds: 5
failureThreshold: 1
{{- end -}}

{{/* RayService: models are pulled before the pod starts. */}}
{{- define "xcray.ray.pullContainers" -}}
{{- range $i, $model := .Values.rayService.models }}
{{- if not $i }}
initContainers:
{{- end }}
  - name: pull-{{ $i }}
    image: {{ include "xcray.image" $ }}
    imagePullPolicy: {{ $.Values.image.pullPolicy }}
    command: [xcray, models, pull]
    args: [{{ $model.uri | quote }}, --home, /var/lib/xcray, --name, {{ $model.name | quote }}]
    env:
      - name: HOME
        value: /tmp
      {{- include "xcray.env.objects" $ | nindent 6 }}
    {{- with include "xcray.envFrom.objects" $ }}
    {{- . | nindent 4 }}
    {{- end }}
    resources:
      {{- toYaml $.Values.migrations.resources | nindent 6 }}
    securityContext:
      {{- include "xcray.containerSecurityContext" $ | nindent 6 }}
    volumeMounts:
      - name: home
        mountPath: /var/lib/xcray
      - name: tmp
        mountPath: /tmp
{{- end }}
{{- end -}}
