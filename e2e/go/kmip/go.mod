module sidekey.dev/e2e/kmip

go 1.26.0

require github.com/ovh/kmip-go v0.8.0
