{{/*
Name of all objects of the release: by default the release's name with the suffix -operator, or another one. At most 55 characters:
the Service of the metrics has 8 more, and may have 63.
*/}}
{{- define "dtj.name" -}}
{{- $suffix := printf "-%s" (.Values.nameOverride | default "operator") -}}
{{- $release := .Release.Name | trimSuffix $suffix | trunc (sub 55 (len $suffix) | int) | trimSuffix "-" -}}
{{- .Values.fullnameOverride | default (print $release $suffix) -}}
{{- end -}}

{{/* Name of cluster-scoped objects: releases of one name in two namespaces must not share them. */}}
{{- define "dtj.clusterName" -}}
{{- printf "%s-%s" (include "dtj.name" .) .Release.Namespace -}}
{{- end -}}

{{- define "dtj.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "dtj.name" .) -}}
{{- end -}}

{{- define "dtj.selectorLabels" -}}
app.kubernetes.io/name: dtj-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "dtj.labels" -}}
{{ include "dtj.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Metadata of an object that others find by its labels: (root, end of the name, those labels). */}}
{{- define "dtj.labelledMetadata" -}}
{{- $root := index . 0 -}}
name: {{ include "dtj.name" $root }}{{ index . 1 }}
namespace: {{ $root.Release.Namespace | quote }}
labels:
  {{- include "dtj.labels" $root | nindent 2 }}
  {{- with index . 2 }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "dtj.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
What the operator may do in the namespaces that it watches: exactly the verbs it uses. A test compares them with the API server's audit log.
Deliberately absent: secrets, pods/exec, updates of pods, wildcards.
*/}}
{{- define "dtj.rules" -}}
- apiGroups: [dtj.dev]
  resources: [distributedtrainingjobs]
  verbs: [get, list, watch, delete] # delete: ttlSecondsAfterFinished
- apiGroups: [dtj.dev]
  resources: [distributedtrainingjobs/status]
  verbs: [patch]
- apiGroups: [dtj.dev]
  resources: [distributedtrainingjobs/finalizers]
  verbs: [update] # required by clusters that check who may set blockOwnerDeletion, such as OpenShift
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, update, delete] # update: edits by others are reverted
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, update, delete]
- apiGroups: [scheduling.k8s.io]
  resources: [podgroups] # where the cluster serves them: jobs start whole
  verbs: [get, list, watch, create, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}
