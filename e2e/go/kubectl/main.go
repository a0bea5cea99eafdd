// Package main is the kubectl that the benchmarks compare with: upstream's own
// command, built from Go modules instead of a source tree.
package main

import (
	"fmt"
	"os"

	"k8s.io/component-base/version"
	"k8s.io/kubectl/pkg/cmd"
)

func main() {
	// The harness asks every server of its kind so; kubectl's own is `version`.
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("Kubernetes", version.Get())
		return
	}
	if err := cmd.NewDefaultKubectlCommand().Execute(); err != nil {
		os.Exit(1)
	}
}
