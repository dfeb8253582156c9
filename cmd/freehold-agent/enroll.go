package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/internal/agent"
)

// tokenVariable has the enrolment token where a flag would show it to every user of the machine.
const tokenVariable = "FREEHOLD_ENROLMENT_TOKEN"

func enrollCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "enroll", Aliases: []string{"enrol"}, Short: "Make this machine a node of a server", Args: cobra.NoArgs,
		Long: `Makes a key for this node and makes it known to the server, with a token that "freehold node register" printed. The token
is good once; when the answer is lost, the same command may be repeated. A running agent of the same folder has to be
stopped before.`,
		Example: `  freehold-agent enroll --server https://hub.example.com:8080 --node node-a --token TOKEN
  echo "$TOKEN" | freehold-agent enroll --server https://hub.example.com:8080 --node node-a --token -`,
		RunE: enroll,
	}
	dataFlag(cmd)
	f := cmd.Flags()
	f.String("server", "", "the base URL of the Freehold server")
	f.String("node", "", "the node's id, as it was registered")
	f.String("token", "", "the enrolment token; - reads it from the standard input; default: $"+tokenVariable)
	f.String("certificate-authority", "", "a PEM file of the authorities that the server's certificate is checked against")
	f.String("fingerprint", "", "the SHA-256 of the server's own certificate, instead of asking any authority")
	f.StringToString("label", nil, "a label of the node, name=value; may be repeated")
	return cmd
}

func enroll(cmd *cobra.Command, _ []string) error {
	c, err := config(cmd)
	if err != nil {
		return err
	}
	f := cmd.Flags()
	text := func(name string) string { value, _ := f.GetString(name); return value }
	e := agent.Enrolment{
		Server: text("server"), NodeID: text("node"), Token: text("token"),
		CAFile: text("certificate-authority"), Fingerprint: text("fingerprint"),
	}
	e.Labels, _ = f.GetStringToString("label")
	if e.Token, err = readToken(e.Token, cmd.InOrStdin()); err != nil {
		return err
	}
	if e.Server == "" || e.NodeID == "" {
		return errors.New("--server and --node are needed: freehold node register prints the whole command")
	}
	id, err := agent.Enrol(cmd.Context(), c, e)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "node %s is enrolled at %s; start it with: freehold-agent run --data %s\n", id.NodeID, id.Server, c.Data)
	return err
}

func readToken(given string, in io.Reader) (string, error) {
	switch given {
	case "":
		given = os.Getenv(tokenVariable)
	case "-":
		raw, err := io.ReadAll(io.LimitReader(in, 4<<10))
		if err != nil {
			return "", fmt.Errorf("read the token: %w", err)
		}
		given = string(raw)
	}
	if given = strings.TrimSpace(given); given == "" {
		return "", errors.New("an enrolment token is needed: freehold node register makes one")
	}
	return given, nil
}
