{{/*
Paths between pods, as rules that policies are put together from. All policies are additive to the one that denies everything.
*/}}

{{/* (list $ "api" "-api") -> head of a NetworkPolicy for a component's pods, from apiVersion to podSelector. */}}
{{- define "xcray.network.head" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "xcray.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "xcray.selectorLabels" . | nindent 6 }}
{{- end -}}

{{/* (list 8000 peers) -> a rule: these peers may come to that port; everybody where there are none. */}}
{{- define "xcray.network.from" -}}
- ports:
    - port: {{ index . 0 }}
      protocol: TCP
  {{- with index . 1 }}
  from:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* (list (list 5432) peers) -> a rule: these ports of these peers may be asked; of everybody where there are none. */}}
{{- define "xcray.network.to" -}}
- ports:
    {{- range index . 0 }}
    - port: {{ . }}
      protocol: TCP
    {{- end }}
  {{- with index . 1 }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Egress to DNS. */}}
{{- define "xcray.network.dns" -}}
- ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
  {{- with .Values.networkPolicy.dnsTo }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Egress to PostgreSQL, where the store is one. */}}
{{- define "xcray.network.store" -}}
{{- if eq (include "xcray.storeType" .) "postgresql" -}}
{{- include "xcray.network.to" (list (list .Values.networkPolicy.storePort) .Values.networkPolicy.storeTo) -}}
{{- end -}}
{{- end -}}

{{/* Egress to object storage, where there is some. */}}
{{- define "xcray.network.objects" -}}
{{- if .Values.storage.objects.enabled -}}
{{- include "xcray.network.to" (list .Values.networkPolicy.objectsPorts .Values.networkPolicy.objectsTo) -}}
{{- end -}}
{{- end -}}

{{/* Egress of API and runner: all that the release's own pods need of others. */}}
{{- define "xcray.network.egress" -}}
{{- include "xcray.network.dns" . }}
{{- with include "xcray.network.store" . }}
{{ . }}
{{- end }}
{{- with include "xcray.network.objects" . }}
{{ . }}
{{- end }}
{{- if .Values.ray.enabled }}
- ports:
    - port: 6379
      protocol: TCP
    - port: 8265
      protocol: TCP
  to:
    - podSelector:
        matchLabels:
          ray.io/cluster: {{ include "xcray.ray.clusterName" . }}
          ray.io/node-type: head
{{- end }}
{{- with .Values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Ingress of the API: from this namespace, from those who speak for people outside, from the test's pod. */}}
{{- define "xcray.network.apiFrom" -}}
{{- if ne .Values.service.type "ClusterIP" -}}
{{- include "xcray.network.from" (list 8000 list) -}}
{{- else -}}
{{- $from := list -}}
{{- if .Values.networkPolicy.sameNamespace -}}
{{- $from = append $from (dict "podSelector" dict) -}}
{{- else if .Values.tests.enabled -}}
{{- $from = append $from (dict "podSelector" (dict "matchLabels" (include "xcray.selectorLabels" (list . "test") | fromYaml))) -}}
{{- end -}}
{{- if or .Values.ingress.enabled .Values.ingress.httpRoute.enabled -}}
{{- $from = concat $from .Values.networkPolicy.apiFrom -}}
{{- end -}}
{{- if $from -}}
{{- include "xcray.network.from" (list 8000 $from) -}}
{{- end -}}
{{- end -}}
{{- end -}}
