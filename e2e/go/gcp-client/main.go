// Package main is Google's own client of Cloud KMS, over its REST transport, by which the fake of
// the end-to-end tests is proven: it reads orders in JSON, one a line, and writes what came of each.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"strings"

	iampb "cloud.google.com/go/iam/apiv1/iampb"
	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/googleapis/gax-go/v2/apierror"
	"golang.org/x/oauth2/google"
	"google.golang.org/api/option"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The version of cloud.google.com/go/kms in go.mod.
const version = "1.36.1"

const scope = "https://www.googleapis.com/auth/cloud-platform"

type order struct {
	Call        string   `json:"call"`
	Name        string   `json:"name"`
	Data        []byte   `json:"data"`
	AAD         []byte   `json:"aad"`
	BadSum      bool     `json:"badSum"`
	Permissions []string `json:"permissions"`
}

type result struct {
	Name        string   `json:"name,omitempty"`
	Data        []byte   `json:"data,omitempty"`
	State       string   `json:"state,omitempty"`
	Purpose     string   `json:"purpose,omitempty"`
	Algorithm   string   `json:"algorithm,omitempty"`
	Permissions []string `json:"permissions,omitempty"`
	Code        string   `json:"code,omitempty"`
	Error       string   `json:"error,omitempty"`
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("gcp-client", version)
		return
	}
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: gcp-client URL metadata|token:FILE|FILE < orders")
		os.Exit(64)
	}
	ctx := context.Background()
	client, err := connect(ctx, os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "gcp-client:", err)
		os.Exit(1)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			fmt.Fprintln(os.Stderr, "gcp-client:", err)
			os.Exit(64)
		}
		r, err := serve(ctx, client, &o)
		if err != nil {
			r = failed(err)
		}
		text, _ := json.Marshal(r)
		fmt.Println(string(text))
	}
}

// connect finds credentials as Google's clients do. "token:FILE" is a service account that asks for
// tokens in the place of signing its own.
func connect(ctx context.Context, url, who string) (*kms.KeyManagementClient, error) {
	options := []option.ClientOption{option.WithEndpoint(url)}
	if file, ok := strings.CutPrefix(who, "token:"); ok {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		config, err := google.JWTConfigFromJSON(text, scope)
		if err != nil {
			return nil, err
		}
		options = append(options, option.WithTokenSource(config.TokenSource(ctx)))
	} else if who != "metadata" {
		if err := os.Setenv("GOOGLE_APPLICATION_CREDENTIALS", who); err != nil {
			return nil, err
		}
	}
	return kms.NewKeyManagementRESTClient(ctx, options...)
}

func serve(ctx context.Context, client *kms.KeyManagementClient, o *order) (*result, error) {
	sum := func(data []byte) *wrapperspb.Int64Value {
		value := int64(crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)))
		if o.BadSum {
			value ^= 1
		}
		return wrapperspb.Int64(value)
	}
	switch o.Call {
	case "get":
		key, err := client.GetCryptoKey(ctx, &kmspb.GetCryptoKeyRequest{Name: o.Name})
		if err != nil {
			return nil, err
		}
		return &result{
			Name: key.GetPrimary().GetName(), State: key.GetPrimary().GetState().String(),
			Purpose: key.GetPurpose().String(), Algorithm: key.GetPrimary().GetAlgorithm().String(),
		}, nil
	case "encrypt":
		request := &kmspb.EncryptRequest{
			Name: o.Name, Plaintext: o.Data, PlaintextCrc32C: sum(o.Data),
		}
		if o.AAD != nil {
			request.AdditionalAuthenticatedData = o.AAD
			request.AdditionalAuthenticatedDataCrc32C = sum(o.AAD)
		}
		answer, err := client.Encrypt(ctx, request)
		if err != nil {
			return nil, err
		}
		if !answer.GetVerifiedPlaintextCrc32C() || (o.AAD != nil) != answer.GetVerifiedAdditionalAuthenticatedDataCrc32C() {
			return nil, fmt.Errorf("the sums were not verified")
		}
		if answer.GetCiphertextCrc32C().GetValue() != sum(answer.GetCiphertext()).GetValue() {
			return nil, fmt.Errorf("the ciphertext's sum is wrong")
		}
		return &result{Name: answer.GetName(), Data: answer.GetCiphertext()}, nil
	case "decrypt":
		request := &kmspb.DecryptRequest{
			Name: o.Name, Ciphertext: o.Data, CiphertextCrc32C: sum(o.Data),
		}
		if o.AAD != nil {
			request.AdditionalAuthenticatedData = o.AAD
			request.AdditionalAuthenticatedDataCrc32C = sum(o.AAD)
		}
		answer, err := client.Decrypt(ctx, request)
		if err != nil {
			return nil, err
		}
		if answer.GetPlaintextCrc32C().GetValue() != sum(answer.GetPlaintext()).GetValue() {
			return nil, fmt.Errorf("the plaintext's sum is wrong")
		}
		return &result{Data: answer.GetPlaintext()}, nil
	case "permissions":
		answer, err := client.TestIamPermissions(ctx, &iampb.TestIamPermissionsRequest{
			Resource: o.Name, Permissions: o.Permissions,
		})
		if err != nil {
			return nil, err
		}
		return &result{Permissions: answer.GetPermissions()}, nil
	}
	return nil, fmt.Errorf("no such call: %q", o.Call)
}

func failed(err error) *result {
	r := &result{Error: err.Error()}
	if api, ok := apierror.FromError(err); ok {
		r.Code = api.GRPCStatus().Code().String()
	}
	return r
}
