// Package main is what a cluster of the end-to-end tests runs beside
// kube-apiserver: upstream's own commands, built from Go modules into one
// binary. The first argument says which of them to be.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/component-base/version"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	name := ""
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	command := component(name)
	if command == nil {
		if name == "--version" {
			fmt.Println("Kubernetes", version.Get())
			return
		}
		fmt.Fprintln(os.Stderr, "usage: node kubelet|kube-controller-manager|kube-scheduler|kube-proxy [FLAG]...")
		os.Exit(64)
	}
	// Each command reads the flags behind its own name.
	os.Args = os.Args[1:]
	os.Exit(cli.Run(command))
}

func component(name string) *cobra.Command {
	switch name {
	case "kubelet":
		return kubelet.NewKubeletCommand(context.Background())
	case "kube-controller-manager":
		return manager.NewControllerManagerCommand()
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand()
	case "kube-proxy":
		return proxy.NewProxyCommand()
	}
	return nil
}
