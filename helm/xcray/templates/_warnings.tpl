{{/* Warnings about this release, for NOTES. */}}
{{- define "xcray.warnings" -}}
{{- if .Values.auth.insecureDev }}

WARNING: there are no keys. Every client of the pods can train, read and delete (auth.insecureDev).
{{- else if not (or .Values.api.tls.existingSecret .Values.ingress.enabled .Values.ingress.httpRoute.enabled (ne .Values.service.type "ClusterIP")) }}

NOTE: inside the cluster the API uses plain HTTP, which also transmits the keys. `kubectl port-forward` is
encrypted; for clients in other pods set api.tls.existingSecret, or use a service mesh.
{{- end }}
{{- if or .Values.ingress.httpRoute.enabled }}

NOTE: the listener of the Gateway must use TLS; the chart cannot check this.
{{- end }}
{{- if not .Values.networkPolicy.enabled }}

WARNING: networkPolicy.enabled=false: every pod in the cluster can reach all ports{{ if .Values.ray.enabled }}, including Ray's{{ end }}.
{{- else }}

NOTE: network policies have an effect only if the cluster's network plug-in enforces them.
{{- end }}
{{- if and (not .Values.auth.existingSecret) (not .Values.auth.insecureDev) }}

NOTE: the admin key was generated. Tools that render without access to the cluster (helm template, Argo CD)
would generate another key at each rendering; set auth.existingSecret for them.
{{- end }}
{{- if and (not .Values.migrations.enabled) (eq (include "xcray.storeType" .) "postgresql") }}

NOTE: migrations.enabled=false: run `xcray store upgrade` against the store before pods of a newer version start.
{{- end }}
{{- end -}}
