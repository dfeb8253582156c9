//go:build !linux

package cli

import "syscall"

// childAttributes: the child gets no signals of our terminal, for it is stopped in order.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// processesIn cannot be told here.
func processesIn(string) []int { return nil }
