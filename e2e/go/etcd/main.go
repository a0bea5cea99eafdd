// Package main is the etcd that the end-to-end tests run: upstream's own
// server, built from Go modules instead of a release archive.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
