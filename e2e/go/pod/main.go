// Package main is what the pods of the end-to-end tests run where they need no
// program of ours: the pause of every pod, and a server that shows a test what
// a pod sees, its files and its network.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const version = "1.0.0"

func main() {
	// In a container this is process 1, which signals end only if it wants.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	switch arguments := os.Args[1:]; {
	case len(arguments) == 1 && arguments[0] == "--version":
		fmt.Println("pod", version)
	case len(arguments) == 1 && arguments[0] == "pause":
		<-ctx.Done()
	case len(arguments) == 2 && arguments[0] == "serve":
		serve(ctx, arguments[1])
	case len(arguments) == 3 && arguments[0] == "mint":
		mint(ctx, arguments[1], arguments[2])
	case len(arguments) > 2 && arguments[0] == "usurp":
		usurp(ctx, arguments[1], arguments[2:])
	default:
		fmt.Fprintln(os.Stderr, "usage: pod pause | pod serve ADDRESS | pod mint SOURCE TARGET | pod usurp OWN TARGET...")
		os.Exit(64)
	}
}

// mint writes what is in the source to the target whenever it changes, as
// HyperShift's token minter writes its tokens: the file is emptied, then filled.
// A moment passes between the two, and another in the middle of the token, so
// that a reader that cannot bear it is sure to see it.
func mint(ctx context.Context, source, target string) {
	written := ""
	for {
		text, err := os.ReadFile(source)
		if err == nil && string(text) != written {
			err = rewrite(target, text)
			written = string(text)
			fmt.Println("minted")
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// usurp does what a sidecar does that was taken over: it puts a socket of its own
// in the place of each target, made beside it or in its own directory and renamed,
// and says what came of that and of everyone who connects.
func usurp(ctx context.Context, own string, targets []string) {
	for number, target := range targets {
		for _, directory := range []string{filepath.Dir(target), own} {
			socket := filepath.Join(directory, fmt.Sprintf("usurper-%d.sock", number))
			listener, err := net.Listen("unix", socket)
			if err == nil {
				go receive(listener, target)
				err = os.Rename(socket, target)
			}
			if err == nil {
				fmt.Println("put in the place of", target)
				break
			}
			fmt.Println("refused:", err)
		}
	}
	fmt.Println("all were tried")
	<-ctx.Done()
}

func receive(listener net.Listener, target string) {
	for {
		if _, err := listener.Accept(); err != nil {
			return
		}
		fmt.Println("taken in: somebody connects to", target)
	}
}

func rewrite(path string, text []byte) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	half := len(text) / 2
	for _, part := range [][]byte{text[:half], text[half:]} {
		time.Sleep(300 * time.Millisecond)
		if _, err := file.Write(part); err != nil {
			return err
		}
	}
	return nil
}

func serve(ctx context.Context, address string) {
	mux := http.NewServeMux()
	mux.HandleFunc("/hostname", func(w http.ResponseWriter, _ *http.Request) {
		name, err := os.Hostname()
		answer(w, []byte(name), err)
	})
	mux.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		text, err := os.ReadFile(r.FormValue("path"))
		answer(w, text, err)
	})
	mux.HandleFunc("/lookup", func(w http.ResponseWriter, r *http.Request) {
		addresses, err := net.DefaultResolver.LookupHost(r.Context(), r.FormValue("name"))
		answer(w, []byte(strings.Join(addresses, " ")), err)
	})
	mux.HandleFunc("/fetch", func(w http.ResponseWriter, r *http.Request) {
		text, err := fetch(r.Context(), r.FormValue("url"))
		answer(w, text, err)
	})
	listener, err := net.Listen("tcp", address)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("serving on", listener.Addr())
	go func() { _ = http.Serve(listener, mux) }()
	<-ctx.Done()
	fmt.Println("ended")
}

func fetch(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	// Each request a connection of its own, so that each is routed anew.
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	return text, err
}

// answer says 502 with the reason where there is one.
func answer(w http.ResponseWriter, text []byte, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	_, _ = w.Write(text)
}
