package tofu

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Folder is one tenant's working folder. It belongs to the tenant's UID, not to its name.
//
//	run.lock            held by whoever works here
//	work/               main.tf.json, .terraform, the saved plan, errored.tfstate
//	s/                  sockets of the providers that a run is served
//	runs/<run>/         progress.json, log.jsonl, outcome.json, supervisor.json, spool/<serial>.tfstate
type Folder string

func (f Folder) lockPath() string          { return filepath.Join(string(f), "run.lock") }
func (f Folder) work() string              { return filepath.Join(string(f), "work") }
func (f Folder) runs() string              { return filepath.Join(string(f), "runs") }
func (f Folder) run(id string) string      { return filepath.Join(string(f), "runs", id) }
func (f Folder) spool(id string) string    { return filepath.Join(f.run(id), "spool") }
func (f Folder) sockets() string           { return filepath.Join(string(f), "s") }
func (f Folder) errored() string           { return filepath.Join(f.work(), "errored.tfstate") }
func (f Folder) progress(id string) string { return filepath.Join(f.run(id), "progress.json") }
func (f Folder) outcome(id string) string  { return filepath.Join(f.run(id), "outcome.json") }

// Log is the path of a run's log: tofu's own JSON lines, without secrets.
func (f Folder) Log(id string) string { return filepath.Join(f.run(id), "log.jsonl") }

// backendURL is a file beside the tenants' folders that tells running supervisors where the plane listens now.
func (f Folder) backendURL() string { return filepath.Join(filepath.Dir(string(f)), "backend.url") }

// PublishBackend tells the supervisors below root where the plane's state backend is.
func PublishBackend(root, url string) error {
	return writeFile(filepath.Join(root, "backend.url"), []byte(url))
}

// Outcome of a run that has ended; ErrNoOutcome if it left none.
func (f Folder) Outcome(id string) (Outcome, error) {
	var o Outcome
	err := readJSON(f.outcome(id), &o)
	if errors.Is(err, os.ErrNotExist) {
		return Outcome{}, ErrNoOutcome
	}
	return o, err
}

// Progress of a run; the zero Progress before it has any.
func (f Folder) Progress(id string) (Progress, error) {
	var p Progress
	err := readJSON(f.progress(id), &p)
	if errors.Is(err, os.ErrNotExist) {
		return Progress{}, nil
	}
	return p, err
}

// Leftover is an encrypted state that tofu wrote and that did not reach the plane.
type Leftover struct {
	Path string
	Envelope
	Body []byte
	// Damage tells why the file is no state; nil for a whole one. tofu writes its errored.tfstate in place: a full disk
	// or a power loss leaves it by half.
	Damage error
}

// Leftovers lists, oldest first, the states that were not delivered; damaged ones come first. It is only meaningful
// while nothing runs here.
func (f Folder) Leftovers() ([]Leftover, error) {
	paths, err := filepath.Glob(filepath.Join(f.runs(), "*", "spool", "*.tfstate"))
	if err != nil {
		return nil, err
	}
	var out []Leftover
	for _, p := range append(paths, f.errored()) {
		body, err := os.ReadFile(p)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		env, err := ReadEnvelope(body)
		out = append(out, Leftover{Path: p, Envelope: env, Body: body, Damage: err})
	}
	slices.SortStableFunc(out, func(a, b Leftover) int { return cmp.Compare(a.Serial, b.Serial) })
	return out, nil
}

// Remove takes a delivered leftover away.
func (l Leftover) Remove() error { return os.Remove(l.Path) }

// SetAside keeps a leftover that must not be delivered, out of the way, for the operator.
func (l Leftover) SetAside() (string, error) {
	to := fmt.Sprintf("%s.refused-%d", strings.TrimSuffix(l.Path, ".tfstate"), l.Serial)
	return to, os.Rename(l.Path, to)
}

// Prune removes the folders of all but the newest keep runs. Those that still hold an undelivered state stay.
func (f Folder) Prune(keep int) error {
	entries, err := os.ReadDir(f.runs())
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	if len(entries) <= keep {
		return nil
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return modTime(a).Compare(modTime(b)) })
	for _, e := range entries[:len(entries)-keep] {
		if left, _ := filepath.Glob(filepath.Join(f.spool(e.Name()), "*.tfstate")); len(left) > 0 {
			continue
		}
		if err := os.RemoveAll(f.run(e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// RemoveAll takes the folder away. Nothing may run here.
func (f Folder) RemoveAll() error {
	l, err := f.lock()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(string(f)), l.Close())
}

func readJSON(path string, v any) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}
