{{/*
Rejected combinations of values, each with a fix. The schema checks single values.
*/}}

{{- define "xcray.accessModes" -}}
{{- $claim := dict -}}
{{- with .Values.storage.home.existingClaim -}}
{{- $claim = get (lookup "v1" "PersistentVolumeClaim" $.Release.Namespace . | default dict) "spec" | default dict -}}
{{- end -}}
{{- get $claim "accessModes" | default .Values.storage.home.accessModes | default (list (ternary "ReadWriteMany" "ReadWriteOnce" (eq .Values.mode "cluster"))) | toJson -}}
{{- end -}}

{{/* Maximum number of API pods. */}}
{{- define "xcray.api.most" -}}
{{- with .Values.api -}}
{{- ternary .autoscaling.maxReplicas .replicas .autoscaling.enabled | int -}}
{{- end -}}
{{- end -}}

{{- define "xcray.refuse" -}}
{{- include "xcray.refuse.image" . -}}
{{- include "xcray.refuse.store" . -}}
{{- include "xcray.refuse.storage" . -}}
{{- include "xcray.refuse.keys" . -}}
{{- include "xcray.refuse.doors" . -}}
{{- include "xcray.refuse.pods" . -}}
{{- include "xcray.refuse.extra" . -}}
{{- include "xcray.ray.refuse" . -}}
{{- end -}}

{{/* Access to Ray's head allows code execution on every node: no external object may lead there,
including extra objects. */}}
{{- define "xcray.refuse.extra" -}}
{{- range .Values.extraObjects -}}
{{- range splitList "\n---" (tpl (ternary . (toYaml .) (kindIs "string" .)) $) -}}
{{- $object := fromYaml . -}}
{{- $kind := get $object "kind" | default "" -}}
{{- $open := has (get (get $object "spec" | default dict) "type" | default "") (list "LoadBalancer" "NodePort") -}}
{{- if or (regexMatch "^(Ingress|IngressRoute|Route|VirtualService|[A-Z]+Route)$" $kind) (and (eq $kind "Service") $open) -}}
{{- if regexMatch "head-svc|ray\\.io/|8265|10001|6379" (toJson $object) -}}
{{- fail (printf "extraObjects has a %s that leads to Ray: anyone who reaches its dashboard may run code on every node. Use kubectl port-forward, see NOTES" $kind) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "xcray.refuse.image" -}}
{{- if and (eq .Values.image.tag "latest") (not .Values.image.digest) -}}
{{- fail "image.tag latest is refused: its version is unknown, and pods of one release could differ. Name a version, or image.digest" -}}
{{- end -}}
{{- end -}}

{{- define "xcray.refuse.store" -}}
{{- $mode := .Values.mode -}}
{{- $type := include "xcray.storeType" . -}}
{{- $most := include "xcray.api.most" . | int -}}
{{- if eq $type "sqlite" -}}
{{- if eq $mode "cluster" -}}
{{- fail "mode cluster needs PostgreSQL: API and runner are pods of their own, and SQLite is a file of one host. Set store.type=postgresql and store.existingSecret, or mode=all-in-one" -}}
{{- end -}}
{{- if or (gt $most 1) .Values.api.autoscaling.enabled -}}
{{- fail (printf "%d API pods on SQLite are refused: each would have keys and jobs of its own, or they would damage one file. Set store.type=postgresql and store.existingSecret, or api.replicas=1 without api.autoscaling" $most) -}}
{{- end -}}
{{- if .Values.store.existingSecret -}}
{{- fail "store.existingSecret is set, but store.type is sqlite, which needs none: set store.type=postgresql, or leave the Secret out" -}}
{{- end -}}
{{- else if not .Values.store.existingSecret -}}
{{- fail (printf "PostgreSQL needs store.existingSecret, a Secret with its URL: kubectl -n %s create secret generic xcray-store --from-file=url=FILE, where FILE holds postgresql://USER:PASSWORD@HOST:5432/DATABASE?sslmode=require" .Release.Namespace) -}}
{{- end -}}
{{- if and (eq $mode "all-in-one") (or (gt $most 1) .Values.api.autoscaling.enabled) -}}
{{- fail "mode all-in-one is one pod, which runs jobs too: set api.replicas=1 without api.autoscaling, or mode=cluster" -}}
{{- end -}}
{{- end -}}

{{- define "xcray.refuse.storage" -}}
{{- $objects := .Values.storage.objects -}}
{{- if and (or .Values.api.models $objects.mirror $objects.follow) (not $objects.enabled) -}}
{{- fail "api.models, storage.objects.mirror and storage.objects.follow speak with object storage: set storage.objects.enabled=true, which opens the way there and gives the credentials" -}}
{{- end -}}
{{- if and $objects.follow (ne .Values.mode "serving") -}}
{{- fail "storage.objects.follow is for mode serving: elsewhere models are trained, and storage.objects.mirror copies them" -}}
{{- end -}}
{{- $home := .Values.storage.home -}}
{{- $modes := include "xcray.accessModes" . | fromJsonArray -}}
{{- if and (eq .Values.mode "cluster") (not (has "ReadWriteMany" $modes)) (not $home.sameNode) -}}
{{- fail "mode cluster mounts the home into pods of several Deployments: storage.home.accessModes, or those of storage.home.existingClaim, must hold ReadWriteMany (NFS, CephFS, EFS, Filestore, Azure Files). Where all of them run on one node, say storage.home.sameNode=true" -}}
{{- end -}}
{{- if and (ne .Values.mode "cluster") (has "ReadWriteMany" $modes) (eq (include "xcray.storeType" .) "sqlite") (ne .Values.mode "serving") -}}
{{- fail "SQLite on a ReadWriteMany volume is refused: such volumes are network file systems, where its write-ahead log is not safe. Use ReadWriteOnce, or store.type=postgresql" -}}
{{- end -}}
{{- if and (has "ReadWriteOncePod" $modes) (ne .Values.mode "all-in-one") (not (has "ReadWriteMany" $modes)) -}}
{{- fail "a ReadWriteOncePod claim belongs to one pod: use it in mode all-in-one" -}}
{{- end -}}
{{- if eq .Values.mode "serving" -}}
{{- $follow := .Values.storage.objects.follow -}}
{{- if and (not .Values.api.models) (not $follow) (not $home.existingClaim) -}}
{{- fail "mode serving has nothing to serve: name models that lie in object storage, api.models=[{name: news, uri: s3://bucket/...}], a folder of them, storage.objects.follow, or storage.home.existingClaim with a home that holds models" -}}
{{- end -}}
{{- if and (or .Values.api.models $follow) $home.existingClaim -}}
{{- fail "mode serving takes its models from object storage (api.models, storage.objects.follow) or from storage.home.existingClaim, not both: pods would write into one home" -}}
{{- end -}}
{{- if .Values.storage.objects.mirror -}}
{{- fail "mode serving publishes nothing that storage.objects.mirror could copy: leave it out" -}}
{{- end -}}
{{- if not $home.existingClaim -}}
{{- $names := list -}}
{{- $whole := ne $follow "" -}}
{{- range .Values.api.models }}
{{- if .name }}{{ $names = append $names .name }}{{ else }}{{ $whole = true }}{{ end -}}
{{- end -}}
{{- range ternary list .Values.api.preload $whole -}}
{{- $name := regexFind "^[^@:]+" . -}}
{{- if not (has $name $names) -}}
{{- fail (printf "api.preload names %s, which this mode has no storage for: pods would never be ready. Add it to api.models, with its uri" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- else if .Values.api.models -}}
{{- fail (printf "api.models are pulled in mode serving only; in mode %s models are trained, or pushed into the home" .Values.mode) -}}
{{- end -}}
{{- end -}}

{{- define "xcray.refuse.keys" -}}
{{- with .Values.auth -}}
{{- if and (not .insecureDev) (not .existingSecret) (not .generate) -}}
{{- fail "no keys at all: everybody who reaches the API could train, read and delete. Set auth.existingSecret (xcray keys secret FILE makes a key) or auth.generate=true; for a closed network auth.insecureDev=true" -}}
{{- end -}}
{{- if and .insecureDev .existingSecret -}}
{{- fail "auth.insecureDev and auth.existingSecret exclude each other: without keys there is no first key" -}}
{{- end -}}
{{- end -}}
{{- if .Values.auth.insecureDev -}}
{{- if or .Values.ingress.enabled .Values.ingress.httpRoute.enabled (ne .Values.service.type "ClusterIP") -}}
{{- fail "auth.insecureDev is for closed networks: no Ingress, no HTTPRoute, no LoadBalancer, no NodePort. Take it away, or set ingress.enabled=false, ingress.httpRoute.enabled=false, service.type=ClusterIP" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "xcray.refuse.doors" -}}
{{- with .Values.ingress -}}
{{- if and .enabled (not .tlsTerminatedOutside) -}}
{{- $named := list -}}
{{- range .tls }}{{ $named = concat $named .hosts }}{{ end -}}
{{- range .hosts -}}
{{- if not (has . $named) -}}
{{- fail (printf "Ingress for %s without TLS: keys could be read on their way. Add it to ingress.tls as [{secretName: ..., hosts: [%s]}]; where something before the Ingress speaks TLS with clients, say ingress.tlsTerminatedOutside=true" . .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $service := .Values.service -}}
{{- if and (ne $service.type "ClusterIP") (not .Values.api.tls.existingSecret) (not $service.tlsTerminatedOutside) -}}
{{- fail (printf "a Service of type %s without TLS: keys could be read on their way. Set api.tls.existingSecret, use an Ingress, or say service.tlsTerminatedOutside=true where the load balancer speaks TLS with clients" $service.type) -}}
{{- end -}}
{{- end -}}

{{- define "xcray.refuse.pods" -}}
{{- with .Values.api -}}
{{- if le (float64 .drainSeconds) (float64 .probes.readiness.periodSeconds) -}}
{{- fail (printf "api.drainSeconds=%v must be more than api.probes.readiness.periodSeconds=%v: else a pod that leaves closes before anybody has looked" .drainSeconds .probes.readiness.periodSeconds) -}}
{{- end -}}
{{- $grace := include "xcray.api.terminationGrace" $ | float64 -}}
{{- if le $grace (addf .drainSeconds .graceSeconds) -}}
{{- fail (printf "api.terminationGracePeriodSeconds=%v must be more than api.drainSeconds and api.graceSeconds together, or requests under way are cut off" $grace) -}}
{{- end -}}
{{- if and .autoscaling.enabled (gt (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas)) -}}
{{- fail "api.autoscaling.minReplicas is above maxReplicas" -}}
{{- end -}}
{{- if and .autoscaling.enabled (not .autoscaling.targetCPUUtilizationPercentage) (not .autoscaling.metrics) -}}
{{- fail "api.autoscaling has nothing to go by: set targetCPUUtilizationPercentage or metrics" -}}
{{- end -}}
{{- if and .autoscaling.enabled .autoscaling.targetCPUUtilizationPercentage (not (get (.resources.requests | default dict) "cpu")) -}}
{{- fail "api.autoscaling by CPU needs api.resources.requests.cpu: utilisation is a share of what is requested" -}}
{{- end -}}
{{- if and (eq .updateStrategy.type "Recreate") .updateStrategy.rollingUpdate -}}
{{- fail "api.updateStrategy.type=Recreate excludes rollingUpdate: set api.updateStrategy.rollingUpdate=null" -}}
{{- end -}}
{{- end -}}
{{- with .Values.runner.updateStrategy -}}
{{- if and (eq .type "Recreate") .rollingUpdate -}}
{{- fail "runner.updateStrategy.type=Recreate excludes rollingUpdate: set runner.updateStrategy.rollingUpdate=null" -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.runner.pool "ray") (not .Values.ray.enabled) -}}
{{- fail "runner.pool=ray needs ray.enabled=true: else each runner would start a Ray inside its own pod" -}}
{{- end -}}
{{- end -}}
