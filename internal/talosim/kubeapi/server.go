package kubeapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
)

// User is who calls.
type User struct {
	Name   string
	Groups []string
}

// Config of a Server.
type Config struct {
	Store *Store
	// Version is Kubernetes', with its "v".
	Version string
	// Authenticate tells who calls; false answers 401.
	Authenticate func(*http.Request) (User, bool)
	// Available is an error while the storage behind the API cannot be used.
	Available func() error
	// Done ends watches.
	Done <-chan struct{}
}

// Server serves the API.
type Server struct {
	Config
	mux      *http.ServeMux
	protobuf runtime.Decoder
}

// NewServer makes the API's handler.
func NewServer(c Config) (*Server, error) {
	decoder, err := newDecoder()
	if err != nil {
		return nil, err
	}
	s := &Server{Config: c, mux: http.NewServeMux(), protobuf: decoder}
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		s.mux.HandleFunc("GET "+path, s.health)
		s.mux.HandleFunc("GET "+path+"/{check}", s.health)
	}
	s.mux.HandleFunc("GET /version", s.version)
	s.mux.HandleFunc("GET /api", s.coreVersions)
	s.mux.HandleFunc("GET /apis", s.groupList)
	s.mux.HandleFunc("GET /apis/{group}", s.group)
	s.mux.HandleFunc("GET /openapi/v2", s.openAPI2)
	s.mux.HandleFunc("GET /openapi/v3", s.openAPI3)
	s.mux.HandleFunc("/api/{version}", s.coreResources)
	s.mux.HandleFunc("/apis/{group}/{version}", s.groupResources)
	s.mux.HandleFunc("/api/{version}/{rest...}", s.resource)
	s.mux.HandleFunc("/apis/{group}/{version}/{rest...}", s.resource)
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
	})
	return s, nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user, ok := s.Authenticate(r)
	if !ok {
		writeError(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
		return
	}
	if !slices.Contains(user.Groups, "system:masters") && !public(r) {
		writeError(w, http.StatusForbidden, metav1.StatusReasonForbidden,
			fmt.Sprintf("User %q cannot %s path %q", user.Name, strings.ToLower(r.Method), r.URL.Path))
		return
	}
	s.mux.ServeHTTP(w, r.WithContext(withUser(r.Context(), user)))
}

// public tells whether any authenticated user may read a path.
func public(r *http.Request) bool {
	p := strings.Trim(r.URL.Path, "/")
	if r.Method == http.MethodPost && strings.Contains(p, "/selfsubject") {
		return true
	}
	if r.Method != http.MethodGet {
		return false
	}
	parts := strings.Split(p, "/")
	switch parts[0] {
	case "healthz", "livez", "readyz", "version", "openapi":
		return true
	case "api":
		return len(parts) <= 2
	case "apis":
		return len(parts) <= 3
	}
	return false
}

func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	name := strings.Split(strings.Trim(r.URL.Path, "/"), "/")[0]
	type check struct {
		name string
		err  error
	}
	checks := []check{{"ping", nil}, {"log", nil}, {"etcd", s.Available()}}
	if name == "readyz" {
		checks = append(checks, check{"etcd-readiness", s.Available()}, check{"informer-sync", nil})
	}
	checks = append(checks, check{"poststarthook/start-apiserver-admission-initializer", nil}, check{"poststarthook/rbac/bootstrap-roles", nil})
	if name == "readyz" {
		checks = append(checks, check{"shutdown", nil})
	}
	if one := r.PathValue("check"); one != "" {
		checks = slices.DeleteFunc(checks, func(c check) bool { return c.name != one })
		if len(checks) == 0 {
			writeError(w, http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
			return
		}
	}
	exclude := r.URL.Query()["exclude"]
	var out strings.Builder
	failed := false
	for _, c := range checks {
		switch {
		case slices.Contains(exclude, c.name):
			fmt.Fprintf(&out, "[+]%s excluded: ok\n", c.name)
		case c.err != nil:
			failed = true
			fmt.Fprintf(&out, "[-]%s failed: reason withheld\n", c.name)
		default:
			fmt.Fprintf(&out, "[+]%s ok\n", c.name)
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if failed {
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprintf(w, "%s%s check failed\n", out.String(), name)
		return
	}
	if _, verbose := r.URL.Query()["verbose"]; verbose {
		fmt.Fprintf(w, "%s%s check passed\n", out.String(), name)
		return
	}
	fmt.Fprint(w, "ok")
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) {
	parts := strings.SplitN(strings.TrimPrefix(s.Version, "v"), ".", 3)
	info := version.Info{
		GitVersion: s.Version, GitTreeState: "clean", BuildDate: "2025-12-17T00:00:00Z", GoVersion: "go1.25.5", Compiler: "gc", Platform: "linux/amd64",
	}
	if len(parts) == 3 {
		info.Major, info.Minor = parts[0], parts[1]
		info.EmulationMajor, info.EmulationMinor = parts[0], parts[1]
	}
	writeJSON(w, http.StatusOK, info)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(data)
}

func writeError(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	writeJSON(w, code, errorStatus(code, reason, message))
}

func errorStatus(code int, reason metav1.StatusReason, message string) *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	}
}
