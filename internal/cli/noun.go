package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/hub"
)

// noun is what the client knows of a kind of thing of the Hub plane.
type noun[R any] struct {
	singular, plural string
	header, wide     []string
	name             func(*R) string
	cells            func(r *R, now time.Time) (cells, wide []string)
}

// printList prints things in the printer's format.
func printList[R any](p *printer, n noun[R], items []R) error {
	switch {
	case p.f.format == "name":
		return printNames(p, n, items)
	case !p.tabular():
		list := struct {
			Items []R `json:"items"`
			Total int `json:"total"`
		}{append([]R{}, items...), len(items)}
		return p.structured(list)
	}
	return printRows(p, n, &table{w: p.w}, items)
}

// printOne prints one thing that was asked for by name, in any format but the one of describing it.
func printOne[R any](p *printer, n noun[R], item *R) error {
	switch {
	case p.f.format == "name":
		return printNames(p, n, []R{*item})
	case !p.tabular():
		return p.structured(item)
	}
	return printRows(p, n, &table{w: p.w}, []R{*item})
}

func printNames[R any](p *printer, n noun[R], items []R) error {
	for i := range items {
		if _, err := fmt.Fprintf(p.w, "%s/%s\n", n.singular, n.name(&items[i])); err != nil {
			return err
		}
	}
	return nil
}

func printRows[R any](p *printer, n noun[R], t *table, items []R) error {
	if !p.f.noHeaders {
		t.add(p.wideCells(n.header, n.wide)...)
	}
	for i := range items {
		t.add(p.wideCells(n.cells(&items[i], p.now()))...)
	}
	return t.flush()
}

// wideCells are a row's cells, with those that -o wide adds.
func (p *printer) wideCells(cells, wide []string) []string {
	out := slices.Clone(cells)
	if p.f.format == "wide" {
		out = append(out, wide...)
	}
	return out
}

// hubAPI is that of the resolved server.
func (a *app) hubAPI() (client.Hub, error) {
	c, err := a.client()
	if err != nil {
		return client.Hub{}, err
	}
	return c.Hub(), nil
}

// list prints what read answers, or that there is nothing.
func list[R any](a *app, out outputFlags, n noun[R], read func(client.Hub) ([]R, error)) error {
	p, err := a.newPrinter(out)
	if err != nil {
		return err
	}
	h, err := a.hubAPI()
	if err != nil {
		return err
	}
	items, err := read(h)
	if err != nil {
		return err
	}
	if len(items) == 0 && p.tabular() {
		a.notef("No %s found.\n", n.plural)
		return nil
	}
	return printList(p, n, items)
}

// show prints one thing: described, unless a format was asked for.
func show[R any](a *app, out outputFlags, n noun[R], read func(client.Hub) (*R, error), describe func(*description, client.Hub, *R) error) error {
	p, err := a.newPrinter(out)
	if err != nil {
		return err
	}
	h, err := a.hubAPI()
	if err != nil {
		return err
	}
	item, err := read(h)
	if err != nil {
		return err
	}
	if out.format != "" {
		return printOne(p, n, item)
	}
	d := &description{w: a.out, now: a.Now()}
	return errors.Join(describe(d, h, item), d.err)
}

// parentCommand is a command that only has others below it.
func parentCommand(use, short, long string, sub ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: noCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(sub...)
	return cmd
}

// readInput reads a file, or the standard input for "-". The name is for messages.
func (a *app) readInput(path string) (name, content string, err error) {
	in := a.in
	if name = "standard input"; path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", "", err
		}
		defer func() { _ = f.Close() }()
		in, name = f, path
	}
	data, err := io.ReadAll(io.LimitReader(in, hub.MaxConfig+1))
	switch {
	case err != nil:
		return "", "", fmt.Errorf("read %s: %w", name, err)
	case len(data) > hub.MaxConfig:
		return "", "", fmt.Errorf("%s is larger than a config version may be (1 MiB)", name)
	case len(strings.TrimSpace(string(data))) == 0:
		return "", "", fmt.Errorf("%s is empty", name)
	}
	return name, string(data), nil
}

// completeWith completes the first argument with what read answers within a second.
func (a *app) completeWith(read func(context.Context, client.Hub) ([]string, error)) completer {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx := cmd.Context()
		if ctx == nil {
			ctx = context.Background()
		}
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		h, err := a.hubAPI()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		words, err := read(ctx, h)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// words joins texts that are not empty.
func words(texts ...string) string {
	var out []string
	for _, t := range texts {
		if t != "" {
			out = append(out, t)
		}
	}
	return strings.Join(out, " ")
}
