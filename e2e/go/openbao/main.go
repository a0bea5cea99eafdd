// Package main is the OpenBao that the end-to-end tests run: upstream's own
// command, built from Go modules instead of a release archive.
package main

import (
	"os"

	"github.com/openbao/openbao/command"
)

func main() {
	os.Exit(command.Run(os.Args[1:]))
}
