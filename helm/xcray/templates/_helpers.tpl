{{/*
Shared helpers: names, labels, image, security, environment, volumes.
Helpers that depend on a component take (list $ "api").
*/}}

{{- define "xcray.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* The name of all objects: at most 40 characters, because KubeRay, hooks and pods add suffixes and
the limit is 63. Longer names are cut and get a checksum, so that they stay unique. */}}
{{- define "xcray.fullname" -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name -}}
{{- $chart := include "xcray.name" . -}}
{{- $name = ternary .Release.Name (printf "%s-%s" .Release.Name $chart) (contains $chart .Release.Name) -}}
{{- end -}}
{{- if gt (len $name) 40 -}}
{{- $name = printf "%s-%s" ($name | trunc 31 | trimSuffix "-") (sha256sum $name | trunc 8) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "xcray.chart" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* (list $ "api") -> selector labels of a component. They never change: selectors are immutable. */}}
{{- define "xcray.selectorLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "xcray.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- with index . 1 }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* (list $ "api") -> all labels of an object; (list $ "") for objects without a component. */}}
{{- define "xcray.labels" -}}
{{- $root := index . 0 -}}
{{ include "xcray.selectorLabels" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: xcray
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ include "xcray.chart" $root }}
{{- end -}}

{{/* (list $ "api" "-suffix") -> name, namespace and labels of an object, below metadata. */}}
{{- define "xcray.metadata" -}}
{{- $root := index . 0 -}}
name: {{ include "xcray.fullname" $root }}{{ index . 2 }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "xcray.labels" (list $root (index . 1)) | nindent 2 }}
{{- end -}}

{{/* The image, by digest if given, else by tag. */}}
{{- define "xcray.image" -}}
{{- $registry := .Values.global.imageRegistry | default .Values.image.registry -}}
{{- $name := ternary (printf "%s/%s" $registry .Values.image.repository) .Values.image.repository (ne $registry "") -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $name .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "xcray.imagePullSecrets" -}}
{{- with concat (.Values.global.imagePullSecrets | default list) (.Values.imagePullSecrets | default list) -}}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{- define "xcray.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "xcray.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* sqlite or postgresql. */}}
{{- define "xcray.storeType" -}}
{{- .Values.store.type | default (ternary "sqlite" "postgresql" (eq .Values.mode "all-in-one")) -}}
{{- end -}}

{{/* The Secret with the first admin key; empty if keys are disabled. */}}
{{- define "xcray.adminSecretName" -}}
{{- if not .Values.auth.insecureDev -}}
{{- .Values.auth.existingSecret | default (printf "%s-admin-key" (include "xcray.fullname" .)) -}}
{{- end -}}
{{- end -}}

{{- define "xcray.scheme" -}}
{{- ternary "https" "http" (ne .Values.api.tls.existingSecret "") -}}
{{- end -}}

{{- define "xcray.servicePort" -}}
{{- .Values.service.port | default (ternary 443 80 (ne .Values.api.tls.existingSecret "")) -}}
{{- end -}}

{{/* URL of the API inside the cluster. */}}
{{- define "xcray.url" -}}
{{- printf "%s://%s.%s.svc:%v" (include "xcray.scheme" .) (include "xcray.fullname" .) .Release.Namespace (include "xcray.servicePort" .) -}}
{{- end -}}

{{/* The claim of the home directory; empty if pods use an emptyDir. */}}
{{- define "xcray.claimName" -}}
{{- if .Values.storage.home.existingClaim -}}
{{- .Values.storage.home.existingClaim -}}
{{- else if ne .Values.mode "serving" -}}
{{- printf "%s-home" (include "xcray.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* Pod security context: not root, default seccomp profile, group of volumes. */}}
{{- define "xcray.podSecurityContext" -}}
runAsNonRoot: true
{{- with .Values.podSecurity }}
{{- with .runAsUser }}
runAsUser: {{ int64 . }}
{{- end }}
{{- with .runAsGroup }}
runAsGroup: {{ int64 . }}
{{- end }}
{{- with .fsGroup }}
fsGroup: {{ int64 . }}
{{- end }}
{{- with .fsGroupChangePolicy }}
fsGroupChangePolicy: {{ . }}
{{- end }}
{{- with .supplementalGroups }}
supplementalGroups:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Container security context: no capabilities, no privilege escalation, read-only root. */}}
{{- define "xcray.containerSecurityContext" -}}
runAsNonRoot: true
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* (list $ "api") -> common pod fields, from `serviceAccountName` to `securityContext`. */}}
{{- define "xcray.podBasics" -}}
{{- $root := index . 0 -}}
serviceAccountName: {{ include "xcray.serviceAccountName" $root }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with include "xcray.imagePullSecrets" $root }}
{{ . }}
{{- end }}
securityContext:
  {{- include "xcray.podSecurityContext" $root | nindent 2 }}
{{- end -}}

{{/* A quantity of CPU -> whole cores, rounded up: "1500m" -> 2. */}}
{{- define "xcray.cores" -}}
{{- $given := toString . -}}
{{- if hasSuffix "m" $given -}}
{{- max 1 (divf (trimSuffix "m" $given | float64) 1000 | ceil | int) -}}
{{- else -}}
{{- max 1 (float64 $given | ceil | int) -}}
{{- end -}}
{{- end -}}

{{/* A setting as an environment variable: strings unchanged, other values as JSON. */}}
{{- define "xcray.settingValue" -}}
{{- if kindIs "string" . -}}{{ . }}{{- else -}}{{ toJson . }}{{- end -}}
{{- end -}}

{{/* Environment of all containers that open home and store: API, runner, migrations, keys, drivers
on Ray. It contains no secrets. */}}
{{- define "xcray.env.store" -}}
- name: XCRAY_HOME
  value: /var/lib/xcray
- name: HOME  # for temporary files of libraries
  value: /tmp
{{- if eq (include "xcray.storeType" .) "postgresql" }}
- name: XCRAY_STORE
  valueFrom:
    secretKeyRef:
      name: {{ .Values.store.existingSecret }}
      key: {{ .Values.store.secretKey }}
- name: XCRAY_STORE_UPGRADE
  value: "false"
{{- if .Values.store.caSecret }}
- name: PGSSLROOTCERT
  value: /run/secrets/xcray-postgres/ca.crt
{{- end }}
{{- end }}
{{- end -}}

{{/* Volume and mount of PostgreSQL's CA certificate; both empty without `store.caSecret`. */}}
{{- define "xcray.volumes.storeCA" -}}
{{- if .Values.store.caSecret -}}
- name: store-ca
  secret:
    secretName: {{ .Values.store.caSecret }}
    defaultMode: 0440
    items:
      - key: {{ .Values.store.caKey | default "ca.crt" }}
        path: ca.crt
{{- end -}}
{{- end -}}

{{- define "xcray.volumeMounts.storeCA" -}}
{{- if .Values.store.caSecret -}}
- name: store-ca
  mountPath: /run/secrets/xcray-postgres
  readOnly: true
{{- end -}}
{{- end -}}

{{/* Credentials and addresses of object storage. */}}
{{- define "xcray.env.objects" -}}
{{- if .Values.storage.objects.enabled }}
{{- with .Values.storage.objects.env }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "xcray.envFrom.objects" -}}
{{- if and .Values.storage.objects.enabled .Values.storage.objects.existingSecret -}}
envFrom:
  - secretRef:
      name: {{ .Values.storage.objects.existingSecret }}
{{- end -}}
{{- end -}}

{{/* Allowed host names: the Service, the pod address (probes and Prometheus), and public names. */}}
{{- define "xcray.allowedHosts" -}}
{{- $name := include "xcray.fullname" . -}}
{{- $space := printf "%s.%s" $name .Release.Namespace -}}
{{- $hosts := list "$(POD_IP)" $name $space (printf "%s.svc" $space) (printf "%s.svc.%s" $space .Values.global.clusterDomain) -}}
{{- if .Values.ingress.enabled -}}
{{- $hosts = concat $hosts .Values.ingress.hosts -}}
{{- end -}}
{{- if .Values.ingress.httpRoute.enabled -}}
{{- $hosts = concat $hosts .Values.ingress.httpRoute.hostnames -}}
{{- end -}}
{{- concat $hosts .Values.api.allowedHosts | uniq | toJson -}}
{{- end -}}

{{/* Common environment of API and runner. */}}
{{- define "xcray.env" -}}
{{ include "xcray.env.store" . }}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: XCRAY_ALLOWED_HOSTS
  value: {{ include "xcray.allowedHosts" . | squote }}
{{- if .Values.auth.insecureDev }}
- name: XCRAY_INSECURE_DEV
  value: "true"
{{- else if .Values.api.tls.existingSecret }}
- name: XCRAY_TLS_CERTFILE
  value: /run/secrets/xcray-tls/tls.crt
- name: XCRAY_TLS_KEYFILE
  value: /run/secrets/xcray-tls/tls.key
{{- else }}
- name: XCRAY_BEHIND_PROXY
  value: "true"
{{- end }}
{{- if ne .Values.ingress.path "/" }}
- name: XCRAY_ROOT_PATH
  value: {{ .Values.ingress.path }}
{{- end }}
{{- if .Values.monitoring.publicMetrics }}
- name: XCRAY_PUBLIC_METRICS
  value: "true"
{{- end }}
- name: XCRAY_MAX_RUNNING_JOBS
  value: {{ .Values.runner.maxRunningJobs | quote }}
- name: XCRAY_POOL
  value: {{ .Values.runner.pool | default (ternary "ray" "threads" .Values.ray.enabled) }}
{{- include "xcray.ray.clientEnv" . }}
{{- include "xcray.env.objects" . }}
{{- range $name, $value := .Values.settings }}
- name: XCRAY_{{ upper $name }}
  value: {{ include "xcray.settingValue" $value | quote }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* (list $ "1Gi") -> the volumes home and tmp. The size is the limit of tmp. */}}
{{- define "xcray.volumes.base" -}}
{{- $root := index . 0 -}}
- name: home
{{- with include "xcray.claimName" $root }}
  persistentVolumeClaim:
    claimName: {{ . }}
{{- else }}
  emptyDir:
    sizeLimit: {{ $root.Values.storage.home.emptyDirSizeLimit }}
{{- end }}
- name: tmp
  emptyDir:
    sizeLimit: {{ index . 1 }}
{{- with include "xcray.volumes.storeCA" $root }}
{{ . }}
{{- end }}
{{- end -}}

{{- define "xcray.volumeMounts.base" -}}
- name: home
  mountPath: /var/lib/xcray
- name: tmp
  mountPath: /tmp
{{- with include "xcray.volumeMounts.storeCA" . }}
{{ . }}
{{- end }}
{{- end -}}

{{/* (list $ "1Gi") -> all volumes that API and runner share; only the init container mounts the admin key. */}}
{{- define "xcray.volumes" -}}
{{- $root := index . 0 -}}
{{ include "xcray.volumes.base" . }}
{{- with include "xcray.adminSecretName" $root }}
- name: admin-key
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items:
      - key: {{ $root.Values.auth.secretKey }}
        path: key
{{- end }}
{{- with $root.Values.api.tls.existingSecret }}
- name: tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- include "xcray.ray.clientVolumes" $root }}
{{- with $root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "xcray.volumeMounts" -}}
{{ include "xcray.volumeMounts.base" . }}
{{- if .Values.api.tls.existingSecret }}
- name: tls
  mountPath: /run/secrets/xcray-tls
  readOnly: true
{{- end }}
{{- include "xcray.ray.clientVolumeMounts" . }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The init container that adds the first admin key to the store. It has no effect if the store already contains the key. Older keys
of the same name expire after a grace period. The name includes the release, because several releases can share a store. */}}
{{- define "xcray.keyContainer" -}}
- name: admin-key
  image: {{ include "xcray.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [xcray, keys, create, --secret-file, /run/secrets/xcray-admin/key, --if-absent, --scopes, admin]
  args:
    - --tenant={{ .Values.auth.tenant }}
    - --name=chart {{ .Release.Namespace }}/{{ .Release.Name }}
    {{- with .Values.auth.olderExpire }}
    - --older-expire={{ . }}
    {{- end }}
  env:
    {{- include "xcray.env.store" . | nindent 4 }}
  resources:
    {{- toYaml .Values.migrations.resources | nindent 4 }}
  securityContext:
    {{- include "xcray.containerSecurityContext" . | nindent 4 }}
  volumeMounts:
    {{- include "xcray.volumeMounts.base" . | nindent 4 }}
    - name: admin-key
      mountPath: /run/secrets/xcray-admin
      readOnly: true
{{- end -}}

{{/* (list $ "http") -> probes of a container, from .Values.api.probes, by the name of its port. */}}
{{- define "xcray.probes" -}}
{{- $root := index . 0 -}}
{{- with $root.Values.api.probes -}}
startupProbe:
  {{- include "xcray.httpGet" (list $root "/healthz" (index $ 1)) | nindent 2 }}
  {{- toYaml .startup | nindent 2 }}
readinessProbe:
  {{- include "xcray.httpGet" (list $root "/readyz" (index $ 1)) | nindent 2 }}
  {{- toYaml .readiness | nindent 2 }}
livenessProbe:
  {{- include "xcray.httpGet" (list $root "/healthz" (index $ 1)) | nindent 2 }}
  {{- toYaml .liveness | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* Checksum of the referenced Secrets in the cluster, so that an upgrade restarts the pods if a Secret has changed. */}}
{{- define "xcray.secretsChecksum" -}}
{{- $root := . -}}
{{- $found := list -}}
{{- with .Values -}}
{{- range list .store.existingSecret .store.caSecret .auth.existingSecret .api.tls.existingSecret .storage.objects.existingSecret -}}
{{- if . -}}
{{- $found = append $found (get (lookup "v1" "Secret" $root.Release.Namespace . | default dict) "data") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $found | sha256sum -}}
{{- end -}}

{{/* (list $ "/healthz" "http") -> an HTTP probe's httpGet. The Host header is the pod's address, which XCRAY_ALLOWED_HOSTS allows. */}}
{{- define "xcray.httpGet" -}}
{{- $root := index . 0 -}}
httpGet:
  path: {{ index . 1 }}
  port: {{ index . 2 }}
  scheme: {{ include "xcray.scheme" $root | upper }}
{{- end -}}
