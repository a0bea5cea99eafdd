module sidekey.dev/e2e/keyprotect-client

go 1.26.0

require github.com/IBM/keyprotect-go-client v0.15.1

require (
	github.com/google/uuid v1.6.0 // indirect
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/hashicorp/go-retryablehttp v0.7.7 // indirect
)
