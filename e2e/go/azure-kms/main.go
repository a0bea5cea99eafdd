// Package main is the Azure/kubernetes-kms that the end-to-end tests run: upstream's own client of
// Key Vault and its own KMS v2 server, on a socket, in its proxy mode. What it stores and what it
// reads is upstream's.
package main

import (
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/Azure/kubernetes-kms/pkg/config"
	"github.com/Azure/kubernetes-kms/pkg/metrics"
	"github.com/Azure/kubernetes-kms/pkg/plugin"
	"google.golang.org/grpc"
	kmsv2 "k8s.io/kms/apis/v2"
)

// The one in go.mod.
const version = "0.11.0"

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("azure-kms", version)
		return
	}
	if len(os.Args) != 8 {
		fmt.Fprintln(os.Stderr, "usage: azure-kms SOCKET CONFIG VAULT KEY VERSION PROXY-HOST PROXY-PORT")
		os.Exit(64)
	}
	if err := serve(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(args []string) error {
	if err := metrics.InitMetricsExporter("prometheus", "0"); err != nil {
		return err
	}
	port, err := strconv.Atoi(args[6])
	if err != nil {
		return err
	}
	azure, err := config.GetAzureConfig(args[1])
	if err != nil {
		return err
	}
	client, err := plugin.NewKeyVaultClient(azure, args[2], args[3], args[4], true, args[5], port, false)
	if err != nil {
		return err
	}
	listener, err := net.Listen("unix", args[0])
	if err != nil {
		return err
	}
	served, err := plugin.NewKMSv2Server(client)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	kmsv2.RegisterKeyManagementServiceServer(server, served)
	fmt.Fprintln(os.Stderr, "listening")
	return server.Serve(listener)
}
