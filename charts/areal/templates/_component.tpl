{{/*
The pod of every component of this chart: restricted security, the same knobs under the same names.

Takes a dict: context, component (the label), knobs (a map with any of podLabels, podAnnotations, resources,
nodeSelector, tolerations, affinity, topologySpreadConstraints, priorityClassName, terminationGracePeriodSeconds,
extraEnv, extraEnvFrom, extraVolumes, extraVolumeMounts), image (a name in `images`), where (the values path, for messages),
serviceAccountName, token (whether the pod may speak to the API server), restartPolicy, and main: the rest of the container.
*/}}
{{- define "areal.pod" -}}
{{- $context := .context -}}
{{- $knobs := .knobs -}}
metadata:
  labels:
    {{- include "areal.labels" (dict "context" $context "component" .component) | nindent 4 }}
    {{- with $knobs.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: main
    {{- with $knobs.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "areal.podSpec" . | nindent 2 }}
{{- end -}}

{{- define "areal.podSpec" -}}
{{- $context := .context -}}
{{- $knobs := .knobs -}}
serviceAccountName: {{ .serviceAccountName }}
automountServiceAccountToken: {{ .token }}
enableServiceLinks: false
{{- with .restartPolicy }}
restartPolicy: {{ . }}
{{- end }}
{{- with $context.Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with $knobs.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- if hasKey $knobs "terminationGracePeriodSeconds" }}
terminationGracePeriodSeconds: {{ $knobs.terminationGracePeriodSeconds }}
{{- end }}
{{- with $knobs.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $knobs.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $knobs.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $knobs.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: main
    image: {{ include "areal.image" (dict "context" $context "image" .image "where" .where) }}
    imagePullPolicy: {{ include "areal.pullPolicy" (dict "context" $context "image" .image) }}
    {{- toYaml .main | nindent 4 }}
    env:
      - name: POD_NAME
        valueFrom:
          fieldRef:
            fieldPath: metadata.name
      - name: POD_NAMESPACE
        valueFrom:
          fieldRef:
            fieldPath: metadata.namespace
      {{- with $knobs.extraEnv }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- with $knobs.extraEnvFrom }}
    envFrom:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    resources:
      {{- toYaml $knobs.resources | nindent 6 }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      runAsNonRoot: true
      capabilities:
        drop: [ALL]
      seccompProfile:
        type: RuntimeDefault
    volumeMounts:
      - name: tmp
        mountPath: /tmp
      {{- with $knobs.extraVolumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
volumes:
  - name: tmp
    emptyDir:
      sizeLimit: 256Mi
  {{- with $knobs.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
