// Package main proves the fake of IBM Key Protect by IBM's own client: it does what a key goes
// through, says what it saw as one JSON object, and ends with 1 where something is not as
// Key Protect's documentation has it.
package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	kp "github.com/IBM/keyprotect-go-client"
)

// The version of the client in go.mod.
const version = "0.15.1"

type saw struct {
	Key, OldVersion, NewVersion string
	Plaintext                   string
	Rewrapped                   bool
	Refusals                    map[string]string
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("keyprotect-client", version)
		return
	}
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: keyprotect-client URL TOKEN-URL INSTANCE API-KEY-FILE")
		os.Exit(64)
	}
	seen, err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3], os.Args[4])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = json.NewEncoder(os.Stdout).Encode(seen)
}

func run(ctx context.Context, url, tokenURL, instance, file string) (*saw, error) {
	apiKey, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	// Neither is worth waiting for: what is retried is no part of this.
	kp.RetryMax = 0
	config := kp.ClientConfig{BaseURL: url, TokenURL: tokenURL, InstanceID: instance, APIKey: string(apiKey)}
	client, err := kp.New(config, nil)
	if err != nil {
		return nil, err
	}
	key, err := client.CreateRootKey(ctx, "kms", nil)
	if err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	described, err := client.GetKeyMetadata(ctx, key.ID)
	if err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	if described.State != int(kp.Active) || described.Extractable || described.KeyVersion == nil {
		return nil, fmt.Errorf("metadata: %+v", described)
	}
	seen := &saw{Key: key.ID, OldVersion: described.KeyVersion.ID, Refusals: map[string]string{}}
	aad := []string{"ibmcloud/bound"}
	plaintext := base64.StdEncoding.EncodeToString([]byte("a key of thirty-two bytes, nearly"))
	wrapped, err := client.WrapV2(ctx, key.ID, []byte(plaintext), &aad)
	if err != nil {
		return nil, fmt.Errorf("wrap: %w", err)
	}
	if wrapped.KeyVersion == nil || wrapped.KeyVersion.ID != seen.OldVersion || wrapped.PlainText != "" {
		return nil, fmt.Errorf("wrap: %+v", wrapped)
	}
	ciphertext := []byte(wrapped.CipherText)
	if _, again, err := client.UnwrapV2(ctx, key.ID, ciphertext, &aad); err != nil || len(again) != 0 {
		return nil, fmt.Errorf("unwrap before a rotation: %q, %w", again, err)
	}
	if err := client.Rotate(ctx, key.ID, ""); err != nil {
		return nil, fmt.Errorf("rotate: %w", err)
	}
	if described, err = client.GetKeyMetadata(ctx, key.ID); err != nil {
		return nil, fmt.Errorf("metadata after a rotation: %w", err)
	}
	seen.NewVersion = described.KeyVersion.ID
	opened, rewrapped, err := client.UnwrapV2(ctx, key.ID, ciphertext, &aad)
	if err != nil {
		return nil, fmt.Errorf("unwrap: %w", err)
	}
	seen.Plaintext, seen.Rewrapped = string(opened), len(rewrapped) > 0
	seen.refusals(ctx, client, key.ID, ciphertext, aad, plaintext)
	return seen, nil
}

// refusals asks for what must be refused, and keeps the codes.
func (seen *saw) refusals(ctx context.Context, client *kp.Client, id string, ciphertext []byte, aad []string, plaintext string) {
	refused := func(what string, err error) {
		var told *kp.Error
		switch {
		case err == nil:
			seen.Refusals[what] = "none"
		case errors.As(err, &told) && len(told.Reasons) > 0:
			seen.Refusals[what] = fmt.Sprintf("%d %s", told.StatusCode, told.Reasons[0].Code)
		default:
			seen.Refusals[what] = err.Error()
		}
	}
	other := []string{"ibmcloud/other"}
	_, _, err := client.UnwrapV2(ctx, id, ciphertext, &other)
	refused("other aad", err)
	_, _, err = client.UnwrapV2(ctx, id, []byte(base64.StdEncoding.EncodeToString([]byte("x"))), &aad)
	refused("no ciphertext", err)
	refused("a second rotation", client.Rotate(ctx, id, ""))
	refused("disable", client.DisableKey(ctx, id))
	_, err = client.WrapV2(ctx, id, []byte(plaintext), &aad)
	refused("wrap while suspended", err)
	_, _, err = client.UnwrapV2(ctx, id, ciphertext, &aad)
	refused("unwrap while suspended", err)
	refused("enable", client.EnableKey(ctx, id))
	_, err = client.DeleteKey(ctx, id, kp.ReturnRepresentation)
	refused("delete", err)
	_, _, err = client.UnwrapV2(ctx, id, ciphertext, &aad)
	refused("unwrap when deleted", err)
	deleted, err := client.GetKeyMetadata(ctx, id)
	refused("metadata when deleted", err)
	if err == nil && deleted.State != int(kp.Destroyed) {
		seen.Refusals["metadata when deleted"] = fmt.Sprint("state ", deleted.State)
	}
	_, err = client.GetKeyMetadata(ctx, "00000000-0000-4000-8000-000000000000")
	refused("metadata of no key", err)
	standard, err := client.CreateStandardKey(ctx, "password", nil)
	if err != nil {
		refused("create a standard key", err)
		return
	}
	_, err = client.WrapV2(ctx, standard.ID, []byte(plaintext), &aad)
	refused("wrap with a standard key", err)
}
