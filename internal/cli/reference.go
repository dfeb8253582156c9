package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Reference is the documentation of a program's commands as Markdown, from what the commands say of themselves.
func Reference(root *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# The %s command\n\n", root.Name())
	b.WriteString("Made from the commands' own help. Every command takes `--help`; those that speak to a server take these flags too:\n\n")
	writeFlags(&b, root.PersistentFlags())
	b.WriteString("\nExit status: 0 when all went well, 1 after an error (told on the error output), 130 when interrupted.\n")
	writeContents(&b, root)
	for _, c := range commands(root) {
		writeCommand(&b, c)
	}
	return b.String()
}

func commands(root *cobra.Command) []*cobra.Command {
	var all []*cobra.Command
	for _, c := range root.Commands() {
		if !c.IsAvailableCommand() || c.Name() == "help" {
			continue
		}
		all = append(all, c)
		all = append(all, commands(c)...)
	}
	return all
}

func writeContents(b *strings.Builder, root *cobra.Command) {
	for _, g := range root.Groups() {
		var lines string
		for _, c := range root.Commands() {
			if c.GroupID == g.ID && c.IsAvailableCommand() && c.Name() != "help" {
				lines += fmt.Sprintf("| [`%s`](#%s) | %s |\n", c.CommandPath(), anchor(c), c.Short)
			}
		}
		if lines != "" {
			fmt.Fprintf(b, "\n| %s | |\n| --- | --- |\n%s", strings.TrimSuffix(g.Title, ":"), lines)
		}
	}
}

func anchor(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

func writeCommand(b *strings.Builder, c *cobra.Command) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n", c.CommandPath(), strings.TrimSpace(text(c)))
	fmt.Fprintf(b, "\n    %s\n", c.UseLine())
	if len(c.Aliases) > 0 {
		fmt.Fprintf(b, "\nAlso: `%s`.\n", strings.Join(c.Aliases, "`, `"))
	}
	if c.Example != "" {
		fmt.Fprintf(b, "\nExamples:\n\n%s\n", indented(c.Example))
	}
	if flags := c.NonInheritedFlags(); flags.HasAvailableFlags() {
		b.WriteString("\n")
		writeFlags(b, flags)
	}
}

// text is the long description; what is indented in it is a block of its own.
func text(c *cobra.Command) string {
	long := c.Long
	if long == "" {
		return c.Short + "."
	}
	var b strings.Builder
	block := false
	for line := range strings.Lines(long) {
		if strings.HasPrefix(line, "  ") {
			if !block && !strings.HasSuffix(b.String(), "\n\n") {
				b.WriteString("\n")
			}
			line, block = "  "+line, true
		} else if strings.TrimSpace(line) != "" {
			block = false
		}
		b.WriteString(line)
	}
	return b.String()
}

func indented(example string) string {
	var b strings.Builder
	for line := range strings.Lines(example) {
		b.WriteString("    " + strings.TrimPrefix(line, "  "))
	}
	return b.String()
}

func writeFlags(b *strings.Builder, flags *pflag.FlagSet) {
	b.WriteString("| flag | |\n| --- | --- |\n")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		kind, usage := pflag.UnquoteUsage(f)
		if kind != "" {
			name += " " + kind
		}
		if d := f.DefValue; d != "" && d != "false" && d != "[]" && d != "0" && d != "0s" && !strings.Contains(usage, "default") {
			usage += "; default: " + d
		}
		fmt.Fprintf(b, "| `%s` | %s |\n", name, strings.ReplaceAll(usage, "|", "\\|"))
	})
}
