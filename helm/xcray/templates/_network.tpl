{{/*
Allowed connections between pods, as rules from which policies are built. All policies add to the default-deny policy.
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

{{/* (list (list 8000) peers) -> a rule: ingress from these peers to these ports; from everywhere if there are no peers. */}}
{{- define "xcray.network.from" -}}
- ports:
    {{- range index . 0 }}
    - port: {{ . }}
      protocol: TCP
    {{- end }}
  {{- with index . 1 }}
  from:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* (list (list 5432) peers) -> a rule: egress to these ports of these peers; to everywhere if there are no peers. */}}
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
    {{- range .Values.networkPolicy.dnsPorts | default (list 53) }}
    - port: {{ . }}
      protocol: UDP
    - port: {{ . }}
      protocol: TCP
    {{- end }}
  {{- with .Values.networkPolicy.dnsTo }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* (list $ "ray-head" "ray-worker") -> peers, as JSON: pods of this release by their components. */}}
{{- define "xcray.network.pods" -}}
{{- $root := first . -}}
{{- $peers := list -}}
{{- range rest . -}}
{{- $peers = append $peers (dict "podSelector" (dict "matchLabels" (include "xcray.selectorLabels" (list $root .) | fromYaml))) -}}
{{- end -}}
{{- toJson $peers -}}
{{- end -}}

{{/* Egress to PostgreSQL, if the store uses it. */}}
{{- define "xcray.network.store" -}}
{{- if eq (include "xcray.storeType" .) "postgresql" -}}
{{- include "xcray.network.to" (list (list .Values.networkPolicy.storePort) .Values.networkPolicy.storeTo) -}}
{{- end -}}
{{- end -}}

{{/* Egress to object storage, if enabled. */}}
{{- define "xcray.network.objects" -}}
{{- if .Values.storage.objects.enabled -}}
{{- include "xcray.network.to" (list .Values.networkPolicy.objectsPorts .Values.networkPolicy.objectsTo) -}}
{{- end -}}
{{- end -}}

{{/* Egress of API and runner. */}}
{{- define "xcray.network.egress" -}}
{{- include "xcray.network.dns" . }}
{{- with include "xcray.network.store" . }}
{{ . }}
{{- end }}
{{- with include "xcray.network.objects" . }}
{{ . }}
{{- end }}
{{- if .Values.ray.enabled }}
{{- $head := dict "ray.io/cluster" (include "xcray.ray.clusterName" .) "ray.io/node-type" "head" }}
{{ include "xcray.network.to" (list (list 6379 8265) (list (dict "podSelector" (dict "matchLabels" $head)))) }}
{{- end }}
{{- with .Values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Ingress of the API: from this namespace, ingress controllers, and the test pod. */}}
{{- define "xcray.network.apiFrom" -}}
{{- if ne .Values.service.type "ClusterIP" -}}
{{- include "xcray.network.from" (list (list 8000) list) -}}
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
{{- include "xcray.network.from" (list (list 8000) $from) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* (list $ "ray" "head") -> ingress of a Ray cluster's head or workers. */}}
{{- define "xcray.network.rayFrom" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
{{- $head := eq (index . 2) "head" -}}
{{- $net := $root.Values.networkPolicy -}}
- from:  # its own cluster, on any port
    {{- include "xcray.network.rayFamily" (list $root $part) | nindent 4 }}
{{- if and $head (eq $part "ray") }}
{{ include "xcray.network.from" (list (list 6379 8265) (include "xcray.network.pods" (list $root "api" "runner") | fromJsonArray)) }}
{{- end }}
{{- if and $head (ne $part "ray") $net.operatorFrom }}
{{ include "xcray.network.from" (list (list 8265) $net.operatorFrom) }}
{{- end }}
{{- if $net.metricsFrom }}
{{- /* 44217: the autoscaler, 44227: the dashboard */}}
{{ include "xcray.network.from" (list (ternary (list 8080 44217 44227) (list 8080) $head) $net.metricsFrom) }}
{{- end }}
{{- if and (not $head) (eq $part "rayservice") }}
{{- $from := concat (ternary (list (dict "podSelector" dict)) list $net.sameNamespace) ($net.apiFrom | default list) }}
{{- if $from }}
{{ include "xcray.network.from" (list (list 8000) $from) }}
{{- end }}
{{- end }}
{{- with $net.rayExtraIngress }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* (list $ "ray" "head") -> egress of a Ray cluster's head or workers. */}}
{{- define "xcray.network.rayTo" -}}
{{- $root := index . 0 -}}
{{- $here := dict "part" (index . 1) "role" (index . 2) -}}
{{- $net := $root.Values.networkPolicy -}}
- to:
    {{- include "xcray.network.rayFamily" (list $root $here.part) | nindent 4 }}
{{ include "xcray.network.dns" $root }}
{{- if include "xcray.ray.opensStore" $here }}
{{- with include "xcray.network.store" $root }}
{{ . }}
{{- end }}
{{- end }}
{{- if include "xcray.ray.asksObjects" $here }}
{{- with include "xcray.network.objects" $root }}
{{ . }}
{{- end }}
{{- end }}
{{- if eq $here.role "head" }}
{{- if and $root.Values.ray.gcsFaultTolerance.enabled (ne $here.part "rayjob") }}
{{- /* also for the job with which KubeRay cleans Redis: it has the labels of the head */}}
{{ include "xcray.network.to" (list (list (regexFind "[0-9]+$" $root.Values.ray.gcsFaultTolerance.redisAddress | int)) $net.redisTo) }}
{{- end }}
{{- if $root.Values.ray.autoscaling.enabled }}
{{- /* the autoscaler's access to the Kubernetes API */}}
{{ include "xcray.network.to" (list $net.kubeApiPorts $net.kubeApiTo) }}
{{- end }}
{{- end }}
{{- with $net.rayExtraEgress }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* (list $ "ray") -> head and workers of one cluster, as peers. */}}
{{- define "xcray.network.rayFamily" -}}
{{- $part := index . 1 -}}
{{- include "xcray.network.pods" (list (index . 0) (printf "%s-head" $part) (printf "%s-worker" $part)) | fromJsonArray | toYaml -}}
{{- end -}}
