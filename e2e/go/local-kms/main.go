// Package main is the local-kms that the end-to-end tests run: upstream's own
// handlers and database behind a listener on loopback alone, because upstream's
// main listens on all addresses.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"strings"

	"github.com/nsmithuk/local-kms/src/config"
	"github.com/nsmithuk/local-kms/src/data"
	"github.com/nsmithuk/local-kms/src/handler"
	"github.com/sirupsen/logrus"
)

// The commit in go.mod.
const version = "e4d9425700fe"

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("local-kms", version)
		return
	}
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: local-kms ADDRESS ACCOUNT REGION DIRECTORY")
		os.Exit(64)
	}
	config.AWSAccountId, config.AWSRegion, config.DatabasePath = os.Args[2], os.Args[3], os.Args[4]
	database := data.NewDatabase(config.DatabasePath)
	logger := logrus.New()
	logger.Fatal(http.ListenAndServe(os.Args[1], http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serve(w, r, database, logger)
	})))
}

// serve calls the handler's method that X-Amz-Target names, as upstream does.
func serve(w http.ResponseWriter, r *http.Request, database *data.Database, logger *logrus.Logger) {
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	method := reflect.ValueOf(handler.NewRequestHandler(r, logger, database)).MethodByName(operation)
	if r.Method != http.MethodPost || !method.IsValid() {
		http.Error(w, fmt.Sprintf("%q is not implemented", operation), http.StatusNotImplemented)
		return
	}
	answer, ok := method.Call(nil)[0].Interface().(handler.Response)
	if !ok {
		http.Error(w, "no response", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	w.WriteHeader(answer.Code)
	_, _ = io.WriteString(w, answer.Body)
}
