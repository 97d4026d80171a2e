{{/* Warnings about this release, for NOTES. */}}
{{- define "xcray.warnings" -}}
{{- if .Values.auth.insecureDev }}

WARNING: there are no keys. Everybody who reaches the pods may train, read and delete (auth.insecureDev).
{{- else if not (or .Values.api.tls.existingSecret .Values.ingress.enabled .Values.ingress.httpRoute.enabled (ne .Values.service.type "ClusterIP")) }}

NOTE: inside the cluster the API speaks plain HTTP, and keys go over it. `kubectl port-forward` is encrypted; for clients in other pods set
api.tls.existingSecret, or use a service mesh.
{{- end }}
{{- if or .Values.ingress.httpRoute.enabled }}

NOTE: an HTTPRoute can't say so itself: see to it that the listener of its Gateway speaks TLS.
{{- end }}
{{- if not .Values.networkPolicy.enabled }}

WARNING: networkPolicy.enabled=false: every pod in the cluster can reach all ports{{ if .Values.ray.enabled }}, Ray's too{{ end }}.
{{- else }}

NOTE: network policies hold only where the cluster's network plug-in enforces them.
{{- end }}
{{- if and (not .Values.auth.existingSecret) (not .Values.auth.insecureDev) }}

NOTE: the admin key was made up. Tools that render without asking the cluster (helm template, Argo CD) would make up another at each rendering:
with them name auth.existingSecret.
{{- end }}
{{- if and (not .Values.migrations.enabled) (eq (include "xcray.storeType" .) "postgresql") }}

NOTE: migrations.enabled=false: run `xcray store upgrade` against the store before pods of a newer version start.
{{- end }}
{{- end -}}
