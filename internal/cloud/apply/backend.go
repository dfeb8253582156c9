package apply

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/tofu"
	"freehold.dev/freehold/internal/kernel/store"
)

// StateHandler serves the protocol of OpenTofu's http backend at /api/v1/tenants/{name}/state (GET, POST, DELETE) and
// /api/v1/tenants/{name}/state/lock (LOCK, UNLOCK). It has its own authentication: basic, with the credential of the
// tenant's living run. The state is opaque here.
func (s *Service) StateHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v1/tenants/{name}/state", s.serveState)
	mux.HandleFunc("/api/v1/tenants/{name}/state/lock", s.serveLock)
	return mux
}

var (
	errUnauthorized = errors.New("the credential is not that of a living run of this tenant")
	errReadOnly     = errors.New("the credential may only read")
)

// lockedError tells who holds the lock.
type lockedError struct{ info json.RawMessage }

func (lockedError) Error() string { return "the state is locked" }

// caller is who asks for a state.
type caller struct {
	name     string // of the tenant
	password string
}

func callerOf(r *http.Request) caller {
	_, password, _ := r.BasicAuth()
	return caller{name: r.PathValue("name"), password: password}
}

// authorize answers the record of the tenant that the caller may work on.
func (s *Service) authorize(r store.Reader, c caller, write bool) (*Record, error) {
	if c.password == "" {
		return nil, errUnauthorized
	}
	tenant, err := cloud.Tenants.Get(r, c.name)
	if errors.Is(err, store.ErrNotFound) {
		return nil, errUnauthorized
	}
	if err != nil {
		return nil, err
	}
	rec, err := ReadRecord(r, tenant.UID)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(c.password))
	if rec.Run != nil && subtle.ConstantTimeCompare(sum[:], rec.Run.Credential) == 1 {
		return rec, nil
	}
	if uid, ok := s.readers.Load(sum); ok && uid == tenant.UID {
		if write {
			return nil, errReadOnly
		}
		return rec, nil
	}
	return nil, errUnauthorized
}

// lendReader mints a credential that reads one tenant's state until it is given back.
func (s *Service) lendReader(uid string) (password string, giveBack func()) {
	password = rand.Text()
	sum := sha256.Sum256([]byte(password))
	s.readers.Store(sum, uid)
	return password, func() { s.readers.Delete(sum) }
}

func (s *Service) serveState(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet:
		var body []byte
		err := s.Store.View(r.Context(), func(tx store.Reader) error {
			rec, err := s.authorize(tx, callerOf(r), false)
			if err != nil {
				return err
			}
			body, err = readState(tx, rec)
			return err
		})
		switch {
		case err != nil:
			s.refuse(w, r, err)
		case body == nil:
			http.Error(w, "no state is stored", http.StatusNotFound)
		default:
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-MD5", tofu.ContentMD5(body))
			_, _ = w.Write(body)
		}
	case http.MethodPost:
		s.writeState(w, r)
	case http.MethodDelete:
		s.answer(w, r, s.change(r.Context(), callerOf(r), func(tx store.Tx, rec *Record) error {
			if err := mayWrite(rec, r.URL.Query().Get("ID")); err != nil {
				return err
			}
			if rec.State == nil || rec.State.Deleted {
				return nil
			}
			rec.State.Deleted = true
			return rec.Write(tx)
		}))
	default:
		w.Header().Set("Allow", "GET, POST, DELETE")
		http.Error(w, "a state is read, written or deleted", http.StatusMethodNotAllowed)
	}
}

func (s *Service) writeState(w http.ResponseWriter, r *http.Request) {
	// The credential is looked at first: a stranger's body is not read.
	err := s.Store.View(r.Context(), func(tx store.Reader) error {
		_, err := s.authorize(tx, callerOf(r), true)
		return err
	})
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, tofu.MaxStateBytes))
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	if sum := r.Header.Get("Content-MD5"); sum != "" && sum != tofu.ContentMD5(body) {
		http.Error(w, "the body does not match its Content-MD5: send it again", http.StatusBadRequest)
		return
	}
	s.answer(w, r, s.change(r.Context(), callerOf(r), func(tx store.Tx, rec *Record) error {
		if err := mayWrite(rec, r.URL.Query().Get("ID")); err != nil {
			return err
		}
		return s.putState(tx, rec, rec.Run.ID, body)
	}))
}

// mayWrite: the writer has to name the lock that is held, by a LOCK or by the run itself.
func mayWrite(rec *Record, id string) error {
	if rec.Lock != nil && rec.Lock.ID != id {
		return lockedError{rec.Lock.Info}
	}
	return nil
}

func (s *Service) serveLock(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	var info struct{ ID string }
	if err := json.Unmarshal(raw, &info); err != nil || info.ID == "" {
		http.Error(w, "a lock is a JSON object with an ID", http.StatusBadRequest)
		return
	}
	switch r.Method {
	case "LOCK":
		err = s.change(r.Context(), callerOf(r), func(tx store.Tx, rec *Record) error {
			if l := rec.Lock; l != nil && l.ID != info.ID && (l.Taken || l.Run != rec.Run.ID) {
				return lockedError{l.Info}
			}
			rec.Lock = &Lock{Run: rec.Run.ID, ID: info.ID, Info: raw, Taken: true}
			return rec.Write(tx)
		})
	case "UNLOCK":
		err = s.change(r.Context(), callerOf(r), func(tx store.Tx, rec *Record) error {
			if rec.Lock == nil || !rec.Lock.Taken {
				return nil
			}
			if rec.Lock.ID != info.ID {
				return lockedError{rec.Lock.Info}
			}
			rec.Lock = reserved(rec.Run)
			return rec.Write(tx)
		})
	default:
		w.Header().Set("Allow", "LOCK, UNLOCK")
		http.Error(w, "a lock is taken by LOCK and given back by UNLOCK", http.StatusMethodNotAllowed)
		return
	}
	s.answer(w, r, err)
}

// reserved is the lock that a run has from its start to its end.
func reserved(run *Run) *Lock {
	info, err := json.Marshal(map[string]any{
		"ID": run.ID, "Operation": "OperationTypeApply", "Who": "freehold", "Version": tofu.Version, "Created": run.Started,
		"Info": "run " + run.ID, "Path": "",
	})
	if err != nil {
		info = json.RawMessage(`{}`)
	}
	return &Lock{Run: run.ID, ID: run.ID, Info: info}
}

// change runs f on the caller's record, in one transaction.
func (s *Service) change(ctx context.Context, c caller, f func(store.Tx, *Record) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error {
		rec, err := s.authorize(tx, c, true)
		if err != nil {
			return err
		}
		return f(tx, rec)
	})
}

func (s *Service) answer(w http.ResponseWriter, r *http.Request, err error) {
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (s *Service) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var locked lockedError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &locked):
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusLocked)
		_, _ = w.Write(locked.info)
	case errors.Is(err, errUnauthorized):
		w.Header().Set("WWW-Authenticate", `Basic realm="state"`)
		http.Error(w, err.Error(), http.StatusUnauthorized)
	case errors.Is(err, errReadOnly):
		http.Error(w, err.Error(), http.StatusForbidden)
	case errors.As(err, &tooLarge):
		http.Error(w, "the state is too large", http.StatusRequestEntityTooLarge)
	case errors.Is(err, tofu.ErrNotEncrypted):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case errors.Is(err, ErrStateConflict):
		http.Error(w, err.Error(), http.StatusConflict)
	case errors.Is(err, store.ErrFull):
		http.Error(w, "no space is left for the state", http.StatusInsufficientStorage)
	case r.Context().Err() != nil:
		http.Error(w, "the request was given up", http.StatusServiceUnavailable)
	default:
		s.Logger.ErrorContext(r.Context(), "the state backend failed", "tenant", r.PathValue("name"), "error", err)
		http.Error(w, "the state could not be kept or read", http.StatusInternalServerError)
	}
}
