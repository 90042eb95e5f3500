{{- define "gateway.selector" -}}
app.kubernetes.io/name: ttft-gateway
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gateway.labels" -}}
{{ include "gateway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Not empty if the chart creates a ServiceAccount: for `discover.endpointslices` in any case, unless one is named. */}}
{{- define "gateway.ownAccount" -}}
{{- $watches := and (not .Values.serviceAccount.name) (ne (include "gateway.watched" .) "{}") }}
{{- if or .Values.serviceAccount.create $watches }}yes{{ end }}
{{- end }}

{{- define "gateway.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary .Release.Name "" (eq (include "gateway.ownAccount" .) "yes")) }}
{{- end }}

{{- /* What `discover.endpointslices` in `config` reads at the API of this cluster, as JSON: resources by namespace. */}}
{{- define "gateway.watched" -}}
{{- $settings := fromJson (include "gateway.settings" .) }}
{{- $watched := dict }}
{{- if not (get (get $settings "kubernetes" | default dict) "url") }}
{{- range $model := get $settings "models" | default list }}
{{- range $pool := concat (list $model) (get $model "fallbacks" | default list) }}
{{- $source := get $pool "discover" | default dict }}
{{- with get $source "endpointslices" }}
{{- $namespace := index (append (splitList "." .) $.Release.Namespace) 1 }}
{{- $resources := get $watched $namespace | default (list "endpointslices") }}
{{- if get $source "pods" }}
{{- $resources = append $resources "pods" }}
{{- end }}
{{- $_ := set $watched $namespace $resources }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- toJson $watched }}
{{- end }}

{{- define "gateway.image" -}}
{{- required "image.repository is empty; set it to the name of the image in your registry" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The settings of `config` as JSON. References to variables are not YAML, so they become `x`. */}}
{{- define "gateway.settings" -}}
{{- $text := required "config is empty; set it to the gateway's configuration file" .Values.config }}
{{- $settings := fromYaml (regexReplaceAll `\$\{[^{}\n]*\}` $text "x") }}
{{- if hasKey $settings "Error" }}
{{- fail (printf "config is not YAML: %s; check it with `ttft-gateway check-config`" $settings.Error) }}
{{- end }}
{{- range tuple "listen" "admin_listen" }}
{{- if hasKey $settings . }}
{{- fail (printf "config.%s is set; remove it, the chart uses the image's ports 8080 and 8081" .) }}
{{- end }}
{{- end }}
{{- if and (hasKey $settings "share") .Values.share.url }}
{{- fail "config.share and share.url are both set; remove one of them" }}
{{- end }}
{{- toJson $settings }}
{{- end }}

{{- define "gateway.config" -}}
{{- $_ := include "gateway.settings" . }}
{{- trimSuffix "\n" .Values.config }}
{{- with .Values.share }}
{{- if .url }}
share:
  url: {{ .url | quote }}
  {{- with .user }}
  user: {{ . | quote }}
  {{- end }}
  {{- if .password }}
  password: ${SHARE_PASSWORD}
  {{- end }}
  {{- if .ca }}
  ca_file: /etc/ttft-gateway-share/ca.crt
  {{- end }}
  fleet: {{ .fleet | quote }}
  gateways: {{ printf "%s-peers" $.Release.Name | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Whole seconds of `drain_timeout`, rounded up. */}}
{{- define "gateway.drainSeconds" -}}
{{- $text := get (fromJson (include "gateway.settings" .)) "drain_timeout" | default "30s" | toString }}
{{- if not (regexMatch `^[0-9]+(\.[0-9]+)?(ms|s|m|h)$` $text) }}
{{- fail (printf "config.drain_timeout is %s; write a duration such as 30s, without a variable" $text) }}
{{- end }}
{{- $unit := regexFind `[a-z]+$` $text }}
{{- ceil (mulf (trimSuffix $unit $text | float64) (get (dict "ms" 0.001 "s" 1 "m" 60 "h" 3600) $unit)) | int64 }}
{{- end }}

{{- /* preStop, 1 s with /readyz at 503, `drain_timeout`, 1 s for errors to the last streams, 3 s to spare. */}}
{{- define "gateway.graceSeconds" -}}
{{- add .Values.preStopSeconds 1 (include "gateway.drainSeconds" .) 1 3 }}
{{- end }}

{{- /*
Memory limit: 170Mi for the process and responses that clients do not read, and 2.3 x the bodies that the gateway may hold, if all
are translated to another API.
*/}}
{{- define "gateway.memory" -}}
{{- $settings := fromJson (include "gateway.settings" .) }}
{{- if not (has (get $settings "workers" | toString) (list "" "1")) }}
{{- fail "resources.limits.memory is empty, and config.workers is set; set the limit for that number of processes" }}
{{- end }}
{{- $limits := get $settings "limits" | default dict }}
{{- $text := get $limits "buffered_bodies_max" | default "512MB" | toString }}
{{- if not (regexMatch `^[0-9]+(B|[kMG]B|[KMG]iB)$` $text) }}
{{- fail (printf "config.limits.buffered_bodies_max is %s; write a size such as 512MB, without a variable" $text) }}
{{- end }}
{{- $unit := regexFind `[A-Za-z]+$` $text }}
{{- $bytes := dict "B" 1 "kB" 1000 "MB" 1000000 "GB" 1000000000 "KiB" 1024 "MiB" 1048576 "GiB" 1073741824 }}
{{- $bodies := divf (mulf (trimSuffix $unit $text | float64) (get $bytes $unit)) 1048576 }}
{{- mul 10 (ceil (divf (addf 170 (mulf 2.3 $bodies)) 10) | int64) }}Mi
{{- end }}

{{- /* A reference to a key of a Secret; arguments: path of the value, and the value. */}}
{{- define "gateway.secretKey" }}
{{- $path := index . 0 }}
{{- $value := index . 1 }}
{{- if not (and (kindIs "map" $value) (get $value "name") (get $value "key")) }}
{{- fail (printf "%s is incomplete; write {name: SECRET, key: KEY}" $path) }}
{{- end -}}
name: {{ $value.name }}
key: {{ $value.key }}
{{- end }}
