{{/* Names */}}
{{- define "areal.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "areal.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "areal.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "areal.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "areal.operatorName" -}}
{{- printf "%s-operator" (include "areal.fullname" .) -}}
{{- end -}}

{{- define "areal.operatorServiceAccount" -}}
{{- .Values.operator.serviceAccount.name | default (include "areal.operatorName" .) -}}
{{- end -}}

{{/* Cluster-wide objects carry the namespace, so that releases of one name in two namespaces don't meet. */}}
{{- define "areal.clusterName" -}}
{{- if eq (include "areal.fullname" .) .Release.Namespace -}}
{{- include "areal.fullname" . -}}
{{- else -}}
{{- printf "%s-%s" .Release.Namespace (include "areal.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* Labels. Those that select never change in a release's life; chart and version are not among them. */}}
{{- define "areal.selectorLabels" -}}
app.kubernetes.io/name: {{ include "areal.name" .context }}
app.kubernetes.io/instance: {{ .context.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "areal.labels" -}}
{{ include "areal.selectorLabels" . }}
app.kubernetes.io/version: {{ .context.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .context.Release.Service }}
app.kubernetes.io/part-of: areal
helm.sh/chart: {{ printf "%s-%s" .context.Chart.Name .context.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .context.Values.global.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Images: a name in `images`, or a whole reference. */}}
{{- define "areal.image" -}}
{{- if not .image -}}
{{- fail (printf "%s has no image: set %s.image to one of %s, or to a whole reference" .where .where (keys .context.Values.images | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if hasKey .context.Values.images .image -}}
{{- $image := get .context.Values.images .image -}}
{{- $registry := $image.registry | default .context.Values.global.imageRegistry -}}
{{- $tag := $image.tag | default .context.Chart.AppVersion -}}
{{- if not $image.repository -}}
{{- fail (printf "images.%s has no repository" .image) -}}
{{- end -}}
{{- if and (not $registry) .context.Values.global.imagesLoaded -}}
{{- $registry = "localhost" -}}
{{- end -}}
{{- if not $registry -}}
{{- fail (printf "images.%s has no registry, and nobody publishes these images for you. Build and push them: `make images REGISTRY=registry.example.com PUSH=1`, then add `--set global.imageRegistry=registry.example.com`. For a local cluster (kind, k3d, containerd): `make images-load`, then add `--set global.imagesLoaded=true`." .image) -}}
{{- end -}}
{{- if and (not $image.digest) (has $tag (list "latest" "main" "master" "nightly")) -}}
{{- fail (printf "images.%s.tag is %q, which moves: name a version, or a digest in images.%s.digest" .image $tag .image) -}}
{{- end -}}
{{ trimSuffix "/" $registry }}/{{ $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $tag }}{{ end -}}
{{- else if regexMatch "[/:@]" .image -}}
{{- .image -}}
{{- else -}}
{{- fail (printf "%s.image is %q, which is not in images (there are %s) and no whole reference" .where .image (keys .context.Values.images | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}

{{- define "areal.pullPolicy" -}}
{{- $image := get .context.Values.images .image | default dict -}}
{{- $image.pullPolicy | default "IfNotPresent" -}}
{{- end -}}

{{/* The namespaces that roles are made for: those that are watched. */}}
{{- define "areal.watched" -}}
{{- toJson .Values.operator.watchNamespaces -}}
{{- end -}}

{{/* The version of the cluster's PodGroups; empty where there are none, or they are not to be used. */}}
{{- define "areal.podGroups" -}}
{{- if and .Values.operator.gang (.Capabilities.APIVersions.Has "scheduling.k8s.io/v1alpha2/PodGroup") }}v1alpha2{{ end -}}
{{- end -}}

{{/* The way out to the API server, as one rule of a NetworkPolicy. */}}
{{- define "areal.toApiServer" -}}
- ports:
    {{- range .Values.operator.networkPolicy.apiServerPorts }}
    - port: {{ . }}
      protocol: TCP
    {{- end }}
  {{- with .Values.operator.networkPolicy.apiServerTo }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
