// Package mlog stands in for the logger that Azure/kubernetes-kms uses, which not every proxy of
// modules serves: one line on standard error for each call.
package mlog

import (
	"fmt"
	"os"
)

func line(values ...any) {
	fmt.Fprintln(os.Stderr, values...)
}

// Always writes a line.
func Always(text string, values ...any) { line(append([]any{text}, values...)...) }

// Info writes a line.
func Info(text string, values ...any) { line(append([]any{text}, values...)...) }

// Debug writes nothing.
func Debug(string, ...any) {}

// Trace writes nothing.
func Trace(string, ...any) {}

// Error writes a line.
func Error(text string, err error, values ...any) { line(append([]any{text, err}, values...)...) }

// Fatal writes a line and ends the process.
func Fatal(err error, values ...any) {
	line(append([]any{err}, values...)...)
	os.Exit(1)
}
