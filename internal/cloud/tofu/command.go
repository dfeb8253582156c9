package tofu

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// exitChanges is the exit code of "plan -detailed-exitcode" when there is something to do.
const exitChanges = 2

// maxLine of tofu's output that is looked at; a longer one is skipped.
const maxLine = 4 << 20

// tofu runs one tofu command in the working folder. Its JSON lines go, cleaned, to the log and to each. The error is
// a [Failure] that tells the first error in plain words.
func (s *supervisor) tofu(ctx context.Context, each func(line), args ...string) (code int, err error) {
	var first *Failure
	var lines bytes.Buffer
	code, err = s.command(ctx, args, func(stdout io.Reader) error {
		scan := bufio.NewScanner(stdout)
		scan.Buffer(make([]byte, 64<<10), maxLine)
		for scan.Scan() {
			_, _ = s.log.Write(append(s.redact.line(scan.Bytes()), '\n'))
			l, ok := parseLine(scan.Bytes())
			if !ok {
				if lines.Len() < 8<<10 {
					lines.Write(append(scan.Bytes(), '\n'))
				}
				continue
			}
			if d := l.Diagnostic; d != nil && d.Severity == "error" && first == nil {
				first = s.failure(d.Address, d.Summary, d.Detail)
			}
			if each != nil {
				each(l)
			}
		}
		_, err := io.Copy(io.Discard, stdout)
		return errors.Join(scan.Err(), err)
	})
	if err != nil {
		if first == nil {
			first = s.failure("", fmt.Sprintf("tofu %s failed", args[0]), plain(lines.String())+" "+plain(err.Error()))
		}
		return code, failedError{first}
	}
	return code, nil
}

// capture runs one tofu command and answers its output, which is kept in memory only.
func (s *supervisor) capture(ctx context.Context, args ...string) ([]byte, error) {
	var out []byte
	_, err := s.command(ctx, args, func(stdout io.Reader) (err error) {
		out, err = io.ReadAll(stdout)
		return err
	})
	if err != nil {
		return nil, failedError{s.failure("", fmt.Sprintf("tofu %s failed", args[0]), plain(err.Error()))}
	}
	return out, nil
}

// outputFD is the descriptor of the pipe that tofu's output comes by.
const outputFD = lockFD + 1

// jsonLines makes tofu plan and apply report in JSON lines, by a descriptor that is not its standard output: the Go
// runtime ends a program that writes to a broken standard output or error, and a tofu that outlives its supervisor
// still has its state to save. By any other descriptor it gets an error, which it ignores.
var jsonLines = fmt.Sprintf("-json-into=/proc/self/fd/%d", outputFD)

// command starts tofu with the folder's lock as a descriptor, so that the lock is held until tofu is gone even if
// this process dies, and in a process group of its own, so that what it started can be killed with it.
func (s *supervisor) command(ctx context.Context, args []string, read func(io.Reader) error) (code int, err error) {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), s.req.Tofu, args...)
	cmd.Dir = s.folder.work()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Env = environment{
		CLIConfig: rcFile(s.req.Template), Backend: s.proxy.url, Username: "run", Password: s.proxy.password,
		Passphrase: s.req.Passphrase, Reattach: s.served.reattach,
	}.list()
	output, into, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer output.Close() //nolint:errcheck // it was read
	defer into.Close()   //nolint:errcheck // tofu has its own
	stderr, err := memoryFile("stderr")
	if err != nil {
		return 0, err
	}
	defer stderr.Close() //nolint:errcheck // it is in memory only
	cmd.Stderr, cmd.ExtraFiles = stderr, []*os.File{s.lock, into}
	if !slices.Contains(args, jsonLines) {
		cmd.Stdout = into
	}
	if err := s.start(cmd); err != nil {
		return 0, err
	}
	_ = into.Close() // so that the output ends when tofu does
	readErr := read(output)
	err = cmd.Wait()
	s.mu.Lock()
	s.tofuPID = 0
	s.mu.Unlock()
	s.proxy.released()
	code = cmd.ProcessState.ExitCode()
	if err != nil && code == exitChanges && args[0] == "plan" {
		err = nil
	}
	if err != nil {
		return code, fmt.Errorf("%w: %s", err, strings.TrimSpace(lastBytes(stderr, 16<<10)))
	}
	return code, readErr
}

// memoryFile is a file that is on no disk and stays while anybody has it open: what is written to it breaks no pipe.
func memoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// lastBytes are the last bytes of a file, most at most.
func lastBytes(f *os.File, most int64) string {
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	from := max(info.Size()-most, 0)
	raw, _ := io.ReadAll(io.NewSectionReader(f, from, most))
	return string(raw)
}

// start starts tofu unless the run was asked to stop.
func (s *supervisor) start(cmd *exec.Cmd) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped != "" {
		return errors.New("the run was asked to stop")
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.tofuPID = cmd.Process.Pid
	return nil
}

func (s *supervisor) failure(address, summary, detail string) *Failure {
	s.mu.Lock()
	phase := s.progress.Phase
	s.mu.Unlock()
	f := newFailure(summary, detail)
	f.Phase, f.Address = phase, address
	f.Summary, f.Detail = s.redact.text(f.Summary), s.redact.text(f.Detail)
	return f
}

// newFailure says in plain words what tofu reports.
func newFailure(summary, detail string) *Failure {
	f := &Failure{Summary: plain(summary), Detail: plain(detail)}
	if wrongPassphrase(summary + " " + detail) {
		f.WrongPassphrase = true
		f.Summary = "The stored state cannot be decrypted with this tenant's key"
		f.Detail = "the key or the state was replaced; restore root.key and the database from the same backup"
	}
	return f
}

// wrongPassphrase recognises what OpenTofu says when a key does not fit.
func wrongPassphrase(text string) bool {
	return strings.Contains(text, "decryption failed") || strings.Contains(text, "message authentication failed")
}

var ansi = regexp.MustCompile("\x1b\\[[0-9;]*m")

// plain joins the lines of a message and takes out box drawing and colours.
func plain(s string) string {
	s = ansi.ReplaceAllString(s, "")
	s = strings.NewReplacer("│", " ", "╷", " ", "╵", " ").Replace(s)
	s = strings.Join(strings.Fields(s), " ")
	const most = 2000
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// tail keeps the last bytes written to it.
type tail struct {
	most int
	buf  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if extra := len(t.buf) - t.most; extra > 0 {
		t.buf = append(t.buf[:0], t.buf[extra:]...)
	}
	return len(p), nil
}

func (t *tail) String() string { return string(t.buf) }
