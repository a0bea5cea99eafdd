// Package main asks a vault by Microsoft's own client, azkeys, with tokens that azidentity has got:
// every kind of login and every operation that the provider uses, and what is refused. All names lead
// to one address. Each step is a line of JSON.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azkeys"
)

// The one of azkeys in go.mod.
const version = "1.5.0"

type input struct {
	Address, CA, Vault, Key, Tenant string
	SecretClient, Secret            string
	CertificateClient, Certificate  string
	FederatedClient, Federated      string
	Aes                             bool
	// Keys that cannot be used: nothing else is asked then.
	Refused []string
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("azure-client", version)
		return
	}
	var in input
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		fmt.Fprintln(os.Stderr, "give the input as JSON:", err)
		os.Exit(64)
	}
	if err := run(context.Background(), in); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, in input) error {
	options, err := options(in)
	if err != nil {
		return err
	}
	credentials, err := credentials(in, options)
	if err != nil {
		return err
	}
	for name, credential := range credentials {
		client, err := azkeys.NewClient(in.Vault, credential, &azkeys.ClientOptions{ClientOptions: options})
		if err != nil {
			return err
		}
		if len(in.Refused) > 0 {
			if name == "secret" {
				refusals(ctx, client, in)
			}
			continue
		}
		if err := roundTrip(ctx, client, name, in); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// refusals say what comes of each key that cannot be used.
func refusals(ctx context.Context, client *azkeys.Client, in input) {
	algorithm := azkeys.EncryptionAlgorithmRSAOAEP256
	if in.Aes {
		algorithm = azkeys.EncryptionAlgorithmA256GCM
	}
	parameters := azkeys.KeyOperationParameters{Algorithm: &algorithm, Value: []byte("plaintext")}
	for _, key := range in.Refused {
		_, err := client.Encrypt(ctx, key, "", parameters, nil)
		refused(key, err)
	}
}

// options lead every name to the one address, and try nothing twice.
func options(in input) (azcore.ClientOptions, error) {
	pem, err := os.ReadFile(in.CA)
	if err != nil {
		return azcore.ClientOptions{}, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, in.Address)
	}
	transport := &http.Transport{
		DialContext:     dial,
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "localhost"},
	}
	return azcore.ClientOptions{
		Transport: &http.Client{Transport: transport},
		Retry:     policy.RetryOptions{MaxRetries: -1},
	}, nil
}

func credentials(in input, options azcore.ClientOptions) (map[string]azcore.TokenCredential, error) {
	secret, err := azidentity.NewClientSecretCredential(in.Tenant, in.SecretClient, in.Secret,
		&azidentity.ClientSecretCredentialOptions{ClientOptions: options})
	if err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(in.Certificate)
	if err != nil {
		return nil, err
	}
	chain, key, err := azidentity.ParseCertificates(pem, nil)
	if err != nil {
		return nil, err
	}
	certificate, err := azidentity.NewClientCertificateCredential(in.Tenant, in.CertificateClient, chain, key,
		&azidentity.ClientCertificateCredentialOptions{ClientOptions: options, SendCertificateChain: true})
	if err != nil {
		return nil, err
	}
	assertion := func(context.Context) (string, error) { return in.Federated, nil }
	federated, err := azidentity.NewClientAssertionCredential(in.Tenant, in.FederatedClient, assertion,
		&azidentity.ClientAssertionCredentialOptions{ClientOptions: options})
	if err != nil {
		return nil, err
	}
	return map[string]azcore.TokenCredential{
		"secret": secret, "certificate": certificate, "federated": federated,
	}, nil
}

func roundTrip(ctx context.Context, client *azkeys.Client, name string, in input) error {
	key, err := client.GetKey(ctx, in.Key, "", nil)
	if err != nil {
		return err
	}
	version := key.Key.KID.Version()
	plaintext := []byte("0123456789abcdef0123456789abcdef")
	algorithm := azkeys.EncryptionAlgorithmRSAOAEP256
	parameters := azkeys.KeyOperationParameters{Algorithm: &algorithm, Value: plaintext}
	if in.Aes {
		algorithm = azkeys.EncryptionAlgorithmA256GCM
		parameters.AdditionalAuthenticatedData = []byte("bound")
	}
	sealed, err := client.Encrypt(ctx, in.Key, "", parameters, nil)
	if err != nil {
		return err
	}
	if sealed.KID.Version() != version {
		return fmt.Errorf("the newest version is %s, and %s has encrypted", version, sealed.KID.Version())
	}
	parameters.Value, parameters.IV, parameters.AuthenticationTag = sealed.Result, sealed.IV, sealed.AuthenticationTag
	opened, err := client.Decrypt(ctx, in.Key, version, parameters, nil)
	if err != nil {
		return err
	}
	if !bytes.Equal(opened.Result, plaintext) {
		return errors.New("something else came back")
	}
	say(map[string]any{"step": name, "kty": *key.Key.Kty, "kid": *sealed.KID, "enabled": *key.Attributes.Enabled})
	parameters.Value = append([]byte{parameters.Value[0] ^ 1}, parameters.Value[1:]...)
	_, altered := client.Decrypt(ctx, in.Key, version, parameters, nil)
	_, missing := client.GetKey(ctx, "no-such-key", "", nil)
	refused("altered", altered)
	refused("missing", missing)
	return nil
}

// refused says what the client has made of a refusal.
func refused(step string, err error) {
	var response *azcore.ResponseError
	if !errors.As(err, &response) {
		say(map[string]any{"step": step, "error": fmt.Sprint(err)})
		return
	}
	said := map[string]any{"step": step, "status": response.StatusCode, "code": response.ErrorCode}
	if pause := response.RawResponse.Header.Get("Retry-After"); pause != "" {
		said["pause"] = pause
	}
	say(said)
}

func say(value any) {
	text, _ := json.Marshal(value)
	fmt.Println(string(text))
}
