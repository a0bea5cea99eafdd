// Package main is the kube-apiserver that the end-to-end tests run: upstream's
// own command, built from Go modules instead of a source tree.
package main

import (
	"fmt"
	"os"
	"time"

	"k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

// pollVariable says how often the EncryptionConfiguration is looked at, in the place of once a
// minute. Upstream has the variable for its own integration tests; there is no flag. Without it
// this is kube-apiserver as everybody runs it.
const pollVariable = "SIDEKEY_E2E_CONFIG_POLL"

func main() {
	if text := os.Getenv(pollVariable); text != "" {
		poll, err := time.ParseDuration(text)
		if err != nil || poll <= 0 {
			fmt.Fprintf(os.Stderr, "%s: %q is no time: %v\n", pollVariable, text, err)
			os.Exit(64)
		}
		controller.EncryptionConfigFileChangePollDuration = poll
	}
	os.Exit(cli.Run(app.NewAPIServerCommand()))
}
