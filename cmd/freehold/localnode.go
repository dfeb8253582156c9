package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/agent"
	"freehold.dev/freehold/internal/agent/engine/benthos"
	"freehold.dev/freehold/internal/agent/engine/process"
	"freehold.dev/freehold/internal/agent/engine/supervise"
)

// agentCommands are what the local node's agent starts: the process between it and a stream, and the one that a Benthos
// pipeline runs in.
func agentCommands() []*cobra.Command {
	hidden := func(name string, main func() int) *cobra.Command {
		return &cobra.Command{Use: name, Hidden: true, DisableFlagParsing: true, Run: func(*cobra.Command, []string) { os.Exit(main()) }}
	}
	return []*cobra.Command{hidden("supervise", supervise.Main), hidden("stream-host", benthos.Host)}
}

// localNode is the name of the sandbox's own node.
const localNode = "local"

// registerLocalNode makes the sandbox's own node known, and answers a token for its agent. It is enrolled anew at each
// start: the sandbox's address may be another one.
func registerLocalNode(ctx context.Context, h client.Hub) (token string, err error) {
	labels := map[string]string{"freehold.dev/sandbox": "true"}
	got, err := h.RegisterNode(ctx, client.NodeRegistration{NodeID: localNode, Labels: labels}, client.MutationOptions{})
	if client.IsConflict(err) {
		got, err = h.EnrolAgain(ctx, localNode, 0, client.MutationOptions{})
	}
	var refused *client.Error
	if errors.As(err, &refused) && refused.Reason == client.CodeNodeDeleting {
		// Somebody deleted it, and the sandbox ended before its streams had.
		if _, err := h.DeleteNode(ctx, localNode, true, client.MutationOptions{}); err != nil && !client.IsNotFound(err) {
			return "", fmt.Errorf("remove the node %s that is being deleted: %w", localNode, err)
		}
		got, err = h.RegisterNode(ctx, client.NodeRegistration{NodeID: localNode, Labels: labels}, client.MutationOptions{})
	}
	if err != nil {
		return "", fmt.Errorf("register the node %s: %w", localNode, err)
	}
	return got.EnrolmentToken, nil
}

// runLocalNode runs the agent of the sandbox's own node until ctx ends.
func (p *plane) runLocalNode(ctx context.Context, token string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program's own file: %w", err)
	}
	c := agent.Config{
		Data: p.settings.localNode(), Version: version, Logger: p.logger.With("node", localNode),
		SuperviseCommand: []string{self, "supervise"}, HostCommand: []string{self, "stream-host"},
		Environment: os.LookupEnv, BaseEnvironment: process.BaseEnv(os.Environ()),
		Enrolment: &agent.Enrolment{Server: p.url, NodeID: localNode, Token: token},
	}
	if err := os.MkdirAll(filepath.Join(c.Data, "secrets"), 0o700); err != nil {
		return fmt.Errorf("make the folder of the node %s: %w", localNode, err)
	}
	if err := agent.Run(ctx, c); err != nil {
		return fmt.Errorf("the node %s: %w", localNode, err)
	}
	return nil
}
