package tofu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-plugin"
)

// Start starts a supervisor for the request. self is the command that calls [RunMain], without its two arguments.
// ErrBusy: something is alive in the folder. The run goes on when ctx ends or this process dies; use [Folder.Wait].
func (f Folder) Start(ctx context.Context, self []string, req Request) error {
	if err := os.MkdirAll(f.run(req.Run), 0o700); err != nil {
		return err
	}
	lock, err := f.lock()
	for range 10 {
		if !errors.Is(err, ErrBusy) {
			break
		}
		// It may be somebody who only looks whether the folder is busy.
		<-time.After(waitTick / 5)
		lock, err = f.lock()
	}
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // the supervisor has its own
	raw, err := json.Marshal(req)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(filepath.Join(f.run(req.Run), "stderr"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer out.Close() //nolint:errcheck // the supervisor has its own
	cmd := exec.CommandContext(context.WithoutCancel(ctx), self[0], append(slices.Clone(self[1:]), string(f), req.Run)...)
	cmd.Dir = string(f)
	if cmd.Env, err = f.environment(); err != nil {
		return err
	}
	cmd.Stdin = bytes.NewReader(raw)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the supervisor of run %s: %w", req.Run, err)
	}
	go func() { _ = cmd.Wait() }() // reaps it; how it ended is in the outcome
	return nil
}

// environment of a supervisor: this process's, without what is none of its business, and with a place for the sockets
// of its providers. A supervisor that is killed leaves them there; the next run of the folder clears them away.
func (f Folder) environment() ([]string, error) {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "FREEHOLD_ADMIN_PASSWORD=") })
	// The longest path that a socket may have, less the name that go-plugin gives it.
	const most = 107 - len("/plugin18446744073709551615")
	if len(f.sockets()) > most {
		return env, nil // they go where temporary files do
	}
	if err := os.RemoveAll(f.sockets()); err != nil {
		return nil, err
	}
	if err := os.Mkdir(f.sockets(), 0o700); err != nil {
		return nil, err
	}
	return append(env, plugin.EnvUnixSocketDir+"="+f.sockets()), nil
}

// waitTick is how often a run is looked at. A file lock that is held by others cannot be waited for together with a
// context.
const waitTick = 50 * time.Millisecond

// Wait waits until nothing is alive in the folder. A run that outlives its deadline, grace and some more is stopped:
// its supervisor must be dead.
func (f Folder) Wait(ctx context.Context, deadline time.Time, grace time.Duration) error {
	tick := time.NewTicker(waitTick)
	defer tick.Stop()
	next := deadline.Add(grace + grace/2)
	signals := []syscall.Signal{syscall.SIGINT, syscall.SIGKILL}
	for {
		busy, err := f.Busy()
		if err != nil || !busy {
			return err
		}
		if len(signals) > 0 && time.Now().After(next) {
			if err := f.signal(signals[0]); err != nil {
				return err
			}
			signals, next = signals[1:], time.Now().Add(grace)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// Interrupt asks a run to stop: tofu finishes what it is at and saves its state. Nothing alive is not an error.
func (f Folder) Interrupt(run string) error {
	pids, err := f.holders()
	if err != nil {
		return err
	}
	var supervisor int
	if err := readJSON(filepath.Join(f.run(run), "supervisor.json"), &supervisor); err == nil && slices.Contains(pids, supervisor) {
		return gone(syscall.Kill(supervisor, syscall.SIGTERM))
	}
	return f.signal(syscall.SIGINT)
}

// signal sends to everything that is alive in the folder.
func (f Folder) signal(s syscall.Signal) error {
	pids, err := f.holders()
	for _, pid := range pids {
		err = errors.Join(err, gone(syscall.Kill(pid, s)))
	}
	return err
}

func gone(err error) error {
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// Pull decrypts a state with "tofu state pull" in the template folder and answers it; it is kept in memory only.
// backend is the URL of the state, with the credential of a reader. ErrPassphrase: the passphrase is another one.
func Pull(ctx context.Context, b Binary, template, backend, username, password, passphrase string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, b.Path, "state", "pull")
	cmd.Dir = template
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = environment{CLIConfig: rcFile(template), Backend: backend, Username: username, Password: password, Passphrase: passphrase}.list()
	var out bytes.Buffer
	stderr := &tail{most: 16 << 10}
	cmd.Stdout, cmd.Stderr = &out, stderr
	if err := cmd.Run(); err != nil {
		text := stderr.String()
		if wrongPassphrase(text) {
			return nil, fmt.Errorf("%w: restore root.key and the database from the same backup", ErrPassphrase)
		}
		text = redactor{known: []string{passphrase, password}}.text(plain(text))
		return nil, fmt.Errorf("tofu state pull: %w: %s", err, text)
	}
	return out.Bytes(), nil
}
