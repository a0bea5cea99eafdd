module sidekey.dev/e2e/pod

go 1.26.0
