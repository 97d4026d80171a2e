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
{{- fail (printf "extraObjects has a %s that leads to Ray: anyone with access to its dashboard can run code on every node. Use kubectl port-forward, see NOTES" $kind) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "xcray.refuse.image" -}}
{{- if and (eq .Values.image.tag "latest") (not .Values.image.digest) -}}
{{- fail "image.tag latest is refused: its version is unknown, and pods of one release could differ. Set a version or image.digest" -}}
{{- end -}}
{{- end -}}

{{- define "xcray.refuse.store" -}}
{{- $mode := .Values.mode -}}
{{- $type := include "xcray.storeType" . -}}
{{- $most := include "xcray.api.most" . | int -}}
{{- if eq $type "sqlite" -}}
{{- if eq $mode "cluster" -}}
{{- fail "mode cluster needs PostgreSQL: API and runner are separate pods, and a SQLite file belongs to one host. Set store.type=postgresql and store.existingSecret, or mode=all-in-one" -}}
{{- end -}}
{{- if or (gt $most 1) .Values.api.autoscaling.enabled -}}
{{- fail (printf "%d API pods on SQLite are refused: they would have separate keys and jobs, or corrupt a shared file. Set store.type=postgresql and store.existingSecret, or api.replicas=1 without api.autoscaling" $most) -}}
{{- end -}}
{{- if .Values.store.existingSecret -}}
{{- fail "store.existingSecret is set, but store.type is sqlite, which does not use it: set store.type=postgresql, or remove the Secret" -}}
{{- end -}}
{{- else if not .Values.store.existingSecret -}}
{{- fail (printf "PostgreSQL needs store.existingSecret, a Secret with its URL: kubectl -n %s create secret generic xcray-store --from-file=url=FILE, where FILE contains postgresql://USER:PASSWORD@HOST:5432/DATABASE?sslmode=require" .Release.Namespace) -}}
{{- end -}}
{{- if and (eq $mode "all-in-one") (or (gt $most 1) .Values.api.autoscaling.enabled) -}}
{{- fail "mode all-in-one is one pod, which also runs jobs: set api.replicas=1 without api.autoscaling, or mode=cluster" -}}
{{- end -}}
{{- end -}}

{{- define "xcray.refuse.storage" -}}
{{- if and .Values.api.models (not .Values.storage.objects.enabled) -}}
{{- fail "api.models need object storage: set storage.objects.enabled=true, which allows the connections and sets the credentials" -}}
{{- end -}}
{{- $home := .Values.storage.home -}}
{{- $modes := include "xcray.accessModes" . | fromJsonArray -}}
{{- if and (eq .Values.mode "cluster") (not (has "ReadWriteMany" $modes)) (not $home.sameNode) -}}
{{- fail "mode cluster mounts the home directory into pods of several Deployments: storage.home.accessModes, or those of storage.home.existingClaim, must contain ReadWriteMany (NFS, CephFS, EFS, Filestore, Azure Files). If all pods run on one node, set storage.home.sameNode=true" -}}
{{- end -}}
{{- if and (ne .Values.mode "cluster") (has "ReadWriteMany" $modes) (eq (include "xcray.storeType" .) "sqlite") (ne .Values.mode "serving") -}}
{{- fail "SQLite on a ReadWriteMany volume is refused: such volumes are network file systems, where its write-ahead log is not safe. Use ReadWriteOnce, or store.type=postgresql" -}}
{{- end -}}
{{- if and (has "ReadWriteOncePod" $modes) (ne .Values.mode "all-in-one") (not (has "ReadWriteMany" $modes)) -}}
{{- fail "a ReadWriteOncePod claim can be used by one pod only: use it in mode all-in-one" -}}
{{- end -}}
{{- if eq .Values.mode "serving" -}}
{{- if and (not .Values.api.models) (not $home.existingClaim) -}}
{{- fail "mode serving has nothing to serve: set api.models=[{name: news, uri: s3://bucket/...}], or storage.home.existingClaim (a home directory with models)" -}}
{{- end -}}
{{- if and .Values.api.models $home.existingClaim -}}
{{- fail "mode serving takes its models from object storage (api.models) or from storage.home.existingClaim, not both: pods would write into one home directory" -}}
{{- end -}}
{{- if not $home.existingClaim -}}
{{- $names := list -}}
{{- $whole := false -}}
{{- range .Values.api.models }}
{{- if .name }}{{ $names = append $names .name }}{{ else }}{{ $whole = true }}{{ end -}}
{{- end -}}
{{- range ternary list .Values.api.preload $whole -}}
{{- $name := regexFind "^[^@:]+" . -}}
{{- if not (has $name $names) -}}
{{- fail (printf "api.preload names %s, which is not in api.models, so pods would never be ready. Add it to api.models with its uri" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- else if .Values.api.models -}}
{{- fail (printf "api.models are pulled in mode serving only; in mode %s models are trained, or pushed into the home directory" .Values.mode) -}}
{{- end -}}
{{- end -}}

{{- define "xcray.refuse.keys" -}}
{{- with .Values.auth -}}
{{- if and (not .insecureDev) (not .existingSecret) (not .generate) -}}
{{- fail "no keys at all: every client of the API could train, read and delete. Set auth.existingSecret (xcray keys secret FILE generates a key) or auth.generate=true; for a closed network auth.insecureDev=true" -}}
{{- end -}}
{{- if and .insecureDev .existingSecret -}}
{{- fail "auth.insecureDev and auth.existingSecret exclude each other: the first key is not used without keys" -}}
{{- end -}}
{{- end -}}
{{- if .Values.auth.insecureDev -}}
{{- if or .Values.ingress.enabled .Values.ingress.httpRoute.enabled (ne .Values.service.type "ClusterIP") -}}
{{- fail "auth.insecureDev is for closed networks: no Ingress, no HTTPRoute, no LoadBalancer, no NodePort. Remove it, or set ingress.enabled=false, ingress.httpRoute.enabled=false, service.type=ClusterIP" -}}
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
{{- fail (printf "Ingress for %s without TLS: keys could be read in transit. Add it to ingress.tls as [{secretName: ..., hosts: [%s]}]; if TLS is terminated in front of the Ingress, set ingress.tlsTerminatedOutside=true" . .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $service := .Values.service -}}
{{- if and (ne $service.type "ClusterIP") (not .Values.api.tls.existingSecret) (not $service.tlsTerminatedOutside) -}}
{{- fail (printf "a Service of type %s without TLS: keys could be read in transit. Set api.tls.existingSecret, use an Ingress, or set service.tlsTerminatedOutside=true if the load balancer terminates TLS" $service.type) -}}
{{- end -}}
{{- end -}}

{{- define "xcray.refuse.pods" -}}
{{- with .Values.api -}}
{{- if le (float64 .drainSeconds) (float64 .probes.readiness.periodSeconds) -}}
{{- fail (printf "api.drainSeconds=%v must be more than api.probes.readiness.periodSeconds=%v: otherwise a terminating pod closes before its probe has failed" .drainSeconds .probes.readiness.periodSeconds) -}}
{{- end -}}
{{- $grace := include "xcray.api.terminationGrace" $ | float64 -}}
{{- if le $grace (addf .drainSeconds .graceSeconds) -}}
{{- fail (printf "api.terminationGracePeriodSeconds=%v must be more than api.drainSeconds and api.graceSeconds together, or requests in progress are cut off" $grace) -}}
{{- end -}}
{{- if and .autoscaling.enabled (gt (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas)) -}}
{{- fail "api.autoscaling.minReplicas is above maxReplicas" -}}
{{- end -}}
{{- if and .autoscaling.enabled (not .autoscaling.targetCPUUtilizationPercentage) (not .autoscaling.metrics) -}}
{{- fail "api.autoscaling has no metric: set targetCPUUtilizationPercentage or metrics" -}}
{{- end -}}
{{- if and .autoscaling.enabled .autoscaling.targetCPUUtilizationPercentage (not (get (.resources.requests | default dict) "cpu")) -}}
{{- fail "api.autoscaling by CPU needs api.resources.requests.cpu: utilisation is relative to the request" -}}
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
{{- fail "runner.pool=ray needs ray.enabled=true: otherwise each runner would start a Ray in its own pod" -}}
{{- end -}}
{{- end -}}
