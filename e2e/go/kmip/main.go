// Package main is a KMIP server for the end-to-end tests: messages, versions and connections are
// OVHcloud's kmip-go, which its own KMS speaks; keys are AES in a file, and what an owner does to
// them is asked at a second address. It does what PyKMIP lacks: TLS 1.3, AES-GCM before KMIP 1.4,
// CBC without padding, a reason for each state, and keys that outlive it.
package main

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"

	"github.com/ovh/kmip-go"
	"github.com/ovh/kmip-go/kmipserver"
	"github.com/ovh/kmip-go/payloads"
)

// The release in go.mod.
const version = "0.8.0"

const tagSize = 16

type key struct {
	Name      string
	State     kmip.State
	Type      kmip.ObjectType
	Algorithm kmip.CryptographicAlgorithm
	Usage     kmip.CryptographicUsageMask
	Value     []byte
}

type kms struct {
	sync.Mutex
	file   string
	Keys   map[string]*key
	calls  map[string]int
	denied bool
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("kmip", version)
		return
	}
	if len(os.Args) != 8 {
		fmt.Fprintln(os.Stderr, "usage: kmip ADDRESS CONTROL NEWEST CERT KEY CLIENTS FILE")
		os.Exit(64)
	}
	server := &kms{file: os.Args[7], Keys: map[string]*key{}, calls: map[string]int{}}
	if kept, err := os.ReadFile(server.file); err == nil {
		check(json.Unmarshal(kept, server))
	}
	newest, err := strconv.Atoi(os.Args[3])
	check(err)
	pair, err := tls.LoadX509KeyPair(os.Args[4], os.Args[5])
	check(err)
	clients, pem := x509.NewCertPool(), must(os.ReadFile(os.Args[6]))
	clients.AppendCertsFromPEM(pem)
	listener, err := tls.Listen("tcp", os.Args[1], &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12,
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
	})
	check(err)
	go func() { log.Fatal(http.ListenAndServe(os.Args[2], http.HandlerFunc(server.control))) }()
	log.Fatal(kmipserver.NewServer(listener, server.executor(newest)).Serve())
}

func (s *kms) executor(newest int) *kmipserver.BatchExecutor {
	executor := kmipserver.NewBatchExecutor()
	versions := []kmip.ProtocolVersion{}
	for minor := 0; minor <= newest; minor++ {
		versions = append(versions, kmip.ProtocolVersion{ProtocolVersionMajor: 1, ProtocolVersionMinor: int32(minor)})
	}
	executor.SetSupportedProtocolVersions(versions...)
	executor.Route(kmip.OperationLocate, kmipserver.HandleFunc(s.locate))
	executor.Route(kmip.OperationGetAttributes, kmipserver.HandleFunc(s.attributes))
	executor.Route(kmip.OperationEncrypt, kmipserver.HandleFunc(s.encrypt))
	executor.Route(kmip.OperationDecrypt, kmipserver.HandleFunc(s.decrypt))
	return executor
}

// begin counts a call, and finds its key; it leaves the lock to its caller.
func (s *kms) begin(operation, id string) (*key, error) {
	s.calls[operation]++
	if s.denied {
		return nil, kmipserver.ErrPermissionDenied
	}
	if found := s.Keys[id]; found != nil || id == "" {
		return found, nil
	}
	return nil, kmipserver.ErrItemNotFound
}

func (s *kms) locate(_ context.Context, asked *payloads.LocateRequestPayload) (*payloads.LocateResponsePayload, error) {
	s.Lock()
	defer s.Unlock()
	if _, err := s.begin("Locate", ""); err != nil {
		return nil, err
	}
	answer := &payloads.LocateResponsePayload{}
	for id, key := range s.Keys {
		if key.fits(asked.Attribute) {
			answer.UniqueIdentifier = append(answer.UniqueIdentifier, id)
		}
	}
	sort.Strings(answer.UniqueIdentifier)
	if most := int(asked.MaximumItems); most > 0 && len(answer.UniqueIdentifier) > most {
		answer.UniqueIdentifier = answer.UniqueIdentifier[:most]
	}
	return answer, nil
}

func (k *key) fits(wanted []kmip.Attribute) bool {
	for _, attribute := range wanted {
		switch value := attribute.AttributeValue.(type) {
		case kmip.Name:
			if value.NameValue != k.Name {
				return false
			}
		case kmip.State:
			if value != k.State {
				return false
			}
		case kmip.ObjectType:
			if value != k.Type {
				return false
			}
		default:
			return false
		}
	}
	return true
}

func (s *kms) attributes(_ context.Context, asked *payloads.GetAttributesRequestPayload) (*payloads.GetAttributesResponsePayload, error) {
	s.Lock()
	defer s.Unlock()
	key, err := s.begin("GetAttributes", asked.UniqueIdentifier)
	if err != nil {
		return nil, err
	}
	values := map[kmip.AttributeName]any{
		kmip.AttributeNameState: key.State, kmip.AttributeNameObjectType: key.Type,
		kmip.AttributeNameCryptographicAlgorithm: key.Algorithm, kmip.AttributeNameCryptographicUsageMask: key.Usage,
	}
	answer := &payloads.GetAttributesResponsePayload{UniqueIdentifier: asked.UniqueIdentifier}
	for _, name := range asked.AttributeName {
		if value, known := values[name]; known {
			answer.Attribute = append(answer.Attribute, kmip.Attribute{AttributeName: name, AttributeValue: value})
		}
	}
	return answer, nil
}

// usable says whether a key may be used, as KMIP's table of states has it.
func (k *key) usable(for_ kmip.CryptographicUsageMask) error {
	isActive := k.State == kmip.StateActive
	reads := for_ == kmip.CryptographicUsageDecrypt && (k.State == kmip.StateDeactivated || k.State == kmip.StateCompromised)
	switch {
	case !isActive && !reads:
		return kmipserver.Errorf(kmip.ResultReasonIllegalOperation, "the key is in state %d", k.State)
	case k.Usage&for_ == 0 || k.Type != kmip.ObjectTypeSymmetricKey || k.Algorithm != kmip.CryptographicAlgorithmAES:
		return kmipserver.ErrPermissionDenied
	}
	return nil
}

func (s *kms) encrypt(ctx context.Context, asked *payloads.EncryptRequestPayload) (*payloads.EncryptResponsePayload, error) {
	s.Lock()
	defer s.Unlock()
	key, err := s.begin("Encrypt", asked.UniqueIdentifier)
	if err == nil {
		err = key.usable(kmip.CryptographicUsageEncrypt)
	}
	if err != nil {
		return nil, err
	}
	data, err := key.crypt(asked.CryptographicParameters, asked.IVCounterNonce, asked.Data, asked.AuthenticatedEncryptionAdditionalData, true)
	answer := &payloads.EncryptResponsePayload{UniqueIdentifier: asked.UniqueIdentifier, Data: data}
	isGCM := asked.CryptographicParameters != nil && asked.CryptographicParameters.BlockCipherMode == kmip.BlockCipherModeGCM
	if err == nil && isGCM && kmipserver.GetProtocolVersion(ctx).ProtocolVersionMinor >= 4 {
		apart := len(data) - tagSize
		answer.Data, answer.AuthenticatedEncryptionTag = data[:apart], data[apart:]
	}
	return answer, err
}

func (s *kms) decrypt(_ context.Context, asked *payloads.DecryptRequestPayload) (*payloads.DecryptResponsePayload, error) {
	s.Lock()
	defer s.Unlock()
	key, err := s.begin("Decrypt", asked.UniqueIdentifier)
	if err == nil {
		err = key.usable(kmip.CryptographicUsageDecrypt)
	}
	if err != nil {
		return nil, err
	}
	data := bytes.Join([][]byte{asked.Data, asked.AuthenticatedEncryptionTag}, nil)
	data, err = key.crypt(asked.CryptographicParameters, asked.IVCounterNonce, data, asked.AuthenticatedEncryptionAdditionalData, false)
	return &payloads.DecryptResponsePayload{UniqueIdentifier: asked.UniqueIdentifier, Data: data}, err
}

func (k *key) crypt(how *kmip.CryptographicParameters, iv, data, aad []byte, encrypt bool) ([]byte, error) {
	block, err := aes.NewCipher(k.Value)
	if err != nil || how == nil || how.CryptographicAlgorithm != kmip.CryptographicAlgorithmAES {
		return nil, kmipserver.ErrInvalidField
	}
	out := make([]byte, len(data))
	switch {
	case how.BlockCipherMode == kmip.BlockCipherModeGCM && len(iv) == 12 && how.TagLength == tagSize:
		gcm, _ := cipher.NewGCM(block)
		if encrypt {
			return gcm.Seal(nil, iv, data, aad), nil
		}
		out, err = gcm.Open([]byte{}, iv, data, aad)
		if err != nil {
			return nil, kmipserver.Errorf(kmip.ResultReasonCryptographicFailure, "it does not authenticate")
		}
	case how.BlockCipherMode == kmip.BlockCipherModeCTR && len(iv) == aes.BlockSize:
		cipher.NewCTR(block, iv).XORKeyStream(out, data)
	case how.BlockCipherMode == kmip.BlockCipherModeCBC && len(iv) == aes.BlockSize &&
		how.PaddingMethod == kmip.PaddingMethodNone && len(data)%aes.BlockSize == 0:
		if encrypt {
			cipher.NewCBCEncrypter(block, iv).CryptBlocks(out, data)
		} else {
			cipher.NewCBCDecrypter(block, iv).CryptBlocks(out, data)
		}
	default:
		return nil, kmipserver.ErrInvalidField
	}
	return out, nil
}

// control is what an owner does: POST makes a key, of an identifier of its own at /keys, or of one that
// is named, /keys/ID; PATCH and DELETE change it; PUT /denied refuses everybody, and GET /calls counts.
func (s *kms) control(w http.ResponseWriter, r *http.Request) {
	s.Lock()
	defer s.Unlock()
	id := strings.TrimPrefix(r.URL.Path, "/keys/")
	var answer any = s.calls
	switch {
	case r.Method == "POST":
		made := &key{
			State: kmip.StateActive, Type: kmip.ObjectTypeSymmetricKey, Algorithm: kmip.CryptographicAlgorithmAES,
			Usage: kmip.CryptographicUsageEncrypt | kmip.CryptographicUsageDecrypt, Value: must(randomBytes(32)),
		}
		check(json.NewDecoder(r.Body).Decode(made))
		if id == "/keys" {
			id = fmt.Sprintf("%x", must(randomBytes(16)))
		}
		s.Keys[id] = made
		answer = map[string]string{"id": id}
	case r.Method == "PATCH":
		check(json.NewDecoder(r.Body).Decode(s.Keys[id]))
	case r.Method == "DELETE":
		delete(s.Keys, id)
	case r.Method == "PUT":
		check(json.NewDecoder(r.Body).Decode(&s.denied))
	}
	kept := s.file + ".new"
	check(os.WriteFile(kept, must(json.Marshal(s)), 0o600))
	check(os.Rename(kept, s.file))
	check(json.NewEncoder(w).Encode(answer))
}

func randomBytes(count int) ([]byte, error) {
	bytes := make([]byte, count)
	_, err := rand.Read(bytes)
	return bytes, err
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
