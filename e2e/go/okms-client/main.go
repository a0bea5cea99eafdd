// Package main proves the fake of OVHcloud KMS by OVHcloud's own client: it does what service keys go
// through, says what it saw as one JSON object, and ends with 1 where something is not as the
// documentation of OKMS has it.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/google/uuid"
	"github.com/ovh/okms-sdk-go"
	"github.com/ovh/okms-sdk-go/types"
)

// The version of the client in go.mod.
const version = "0.5.1"

type saw struct {
	Keys      []string
	Plaintext string
	States    []string
	Refusals  map[string]string
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("okms-client", version)
		return
	}
	if len(os.Args) != 6 {
		fmt.Fprintln(os.Stderr, "usage: okms-client URL DOMAIN CA CERTIFICATE KEY")
		os.Exit(64)
	}
	seen, err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = json.NewEncoder(os.Stdout).Encode(seen)
}

// dial makes a client with a certificate, or with none.
func dial(url, ca string, pair ...string) (*okms.Client, error) {
	roots := x509.NewCertPool()
	bundle, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	if !roots.AppendCertsFromPEM(bundle) {
		return nil, errors.New("no CA")
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	if len(pair) == 2 {
		shown, err := tls.LoadX509KeyPair(pair[0], pair[1])
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{shown}
	}
	// What is retried is no part of this.
	return okms.NewRestAPIClient(url, okms.ClientConfig{TlsCfg: config, Retry: &okms.RetryConfig{RetryMax: 0}})
}

func run(ctx context.Context, url, domainID, ca, cert, key string) (*saw, error) {
	client, err := dial(url, ca, cert, key)
	if err != nil {
		return nil, err
	}
	domain, err := uuid.Parse(domainID)
	if err != nil {
		return nil, err
	}
	seen := &saw{Refusals: map[string]string{}}
	made := []uuid.UUID{}
	for _, name := range []string{"etcd", "other", "third"} {
		key, err := client.GenerateSymmetricKey(ctx, domain, types.N256, name, "", types.Encrypt, types.Decrypt)
		if err != nil {
			return nil, fmt.Errorf("create: %w", err)
		}
		made = append(made, key.Id)
	}
	id := made[0]
	if err := seen.list(ctx, client, domain); err != nil {
		return nil, err
	}
	// With additional authenticated data, as we write, and without, as the replaced plugin writes.
	for _, keyCtx := range []string{"a-scope", ""} {
		jwe, err := client.Encrypt(ctx, domain, id, keyCtx, []byte("a key of thirty-two bytes, nearly"))
		if err != nil {
			return nil, fmt.Errorf("encrypt: %w", err)
		}
		plain, err := client.Decrypt(ctx, domain, id, keyCtx, jwe)
		if err != nil {
			return nil, fmt.Errorf("decrypt: %w", err)
		}
		seen.Plaintext = string(plain)
	}
	// A label is turned to another key.
	former := types.PatchServiceKeyRequest{Name: "former"}
	if _, err := client.UpdateServiceKey(ctx, domain, id, former); err != nil {
		return nil, fmt.Errorf("rename: %w", err)
	}
	label := types.PatchServiceKeyRequest{Name: "etcd"}
	if _, err := client.UpdateServiceKey(ctx, domain, made[1], label); err != nil {
		return nil, fmt.Errorf("rename: %w", err)
	}
	if err := seen.list(ctx, client, domain); err != nil {
		return nil, err
	}
	if err := seen.refusals(ctx, client, domain, made); err != nil {
		return nil, err
	}
	stranger, err := dial(url, ca)
	if err != nil {
		return nil, err
	}
	_, err = stranger.GetServiceKey(ctx, domain, id, nil)
	seen.refused("no certificate", err)
	return seen, nil
}

// list keeps the labels of all active keys, page by page.
func (seen *saw) list(ctx context.Context, client *okms.Client, domain uuid.UUID) error {
	active := types.KeyStatesActive
	for key, err := range client.ListAllServiceKeys(domain, nil, &active).Iter(ctx) {
		if err != nil {
			return fmt.Errorf("list: %w", err)
		}
		seen.Keys = append(seen.Keys, key.Name)
	}
	return nil
}

// refused keeps the status and the category of the code of a refusal.
func (seen *saw) refused(what string, err error) {
	told := okms.AsKmsError(err)
	switch {
	case err == nil:
		seen.Refusals[what] = "none"
	case told != nil && len(told.Errors) > 0 && told.RequestId != "" && told.ErrorId != "":
		seen.Refusals[what] = fmt.Sprintf("%d %s", okms.ErrStatusCode(err), told.ErrorCode.Category())
	default:
		seen.Refusals[what] = err.Error()
	}
}

// state keeps the state of a key.
func (seen *saw) state(ctx context.Context, client *okms.Client, domain, id uuid.UUID) error {
	key, err := client.GetServiceKey(ctx, domain, id, nil)
	if err != nil {
		return fmt.Errorf("get: %w", err)
	}
	if key.Id != id || key.Type != types.Oct || key.Operations == nil || len(*key.Operations) != 2 || key.Attributes == nil {
		return fmt.Errorf("get: %+v", key)
	}
	seen.States = append(seen.States, fmt.Sprint((*key.Attributes)["state"]))
	return nil
}

// refusals asks for what must be refused.
func (seen *saw) refusals(ctx context.Context, client *okms.Client, domain uuid.UUID, made []uuid.UUID) error {
	id, plain := made[0], []byte("plain")
	bound, err := client.Encrypt(ctx, domain, id, "a-scope", plain)
	if err != nil {
		return fmt.Errorf("encrypt: %w", err)
	}
	_, err = client.Decrypt(ctx, domain, id, "another-scope", bound)
	seen.refused("other context", err)
	_, err = client.Decrypt(ctx, domain, id, "", bound)
	seen.refused("no context", err)
	_, err = client.Decrypt(ctx, domain, made[1], "a-scope", bound)
	seen.refused("other key", err)
	_, err = client.Decrypt(ctx, domain, id, "a-scope", "e30..AAAA.AAAA.AAAA")
	seen.refused("no ciphertext", err)
	_, err = client.Encrypt(ctx, domain, id, "", make([]byte, 5000))
	seen.refused("too long", err)
	_, err = client.Encrypt(ctx, domain, id, string(make([]byte, 65)), plain)
	seen.refused("context too long", err)
	_, err = client.Encrypt(ctx, uuid.New(), id, "", plain)
	seen.refused("other domain", err)
	_, err = client.Encrypt(ctx, domain, uuid.New(), "", plain)
	seen.refused("no key", err)
	_, err = client.GetServiceKey(ctx, domain, uuid.New(), nil)
	seen.refused("get no key", err)
	rsa, err := client.GenerateRSAKeyPair(ctx, domain, types.N2048, "signs", "", types.Sign, types.Verify)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	_, err = client.Encrypt(ctx, domain, rsa.Id, "", plain)
	seen.refused("other type", err)
	seen.refused("delete while active", client.DeleteServiceKey(ctx, domain, id))
	seen.refused("deactivate", client.DeactivateServiceKey(ctx, domain, id, types.Superseded))
	if err := seen.state(ctx, client, domain, id); err != nil {
		return err
	}
	_, err = client.Encrypt(ctx, domain, id, "a-scope", plain)
	seen.refused("encrypt while deactivated", err)
	_, err = client.Decrypt(ctx, domain, id, "a-scope", bound)
	seen.refused("decrypt while deactivated", err)
	seen.refused("activate", client.ActivateServiceKey(ctx, domain, id))
	if err := seen.state(ctx, client, domain, id); err != nil {
		return err
	}
	seen.refused("compromise", client.DeactivateServiceKey(ctx, domain, id, types.KeyCompromise))
	if err := seen.state(ctx, client, domain, id); err != nil {
		return err
	}
	seen.refused("delete", client.DeleteServiceKey(ctx, domain, id))
	_, err = client.Decrypt(ctx, domain, id, "a-scope", bound)
	seen.refused("decrypt when deleted", err)
	return nil
}
