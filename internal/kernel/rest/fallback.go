package rest

import (
	"net/http"
	"path"
	"slices"
	"strings"
)

// Handler serves the mux that the API is on. A path with "//", "/./" or "/../" in it, which the mux would redirect to a
// page for browsers, is one that does not exist: the first of the others on this mux that has a prefix of it says so, or
// this one.
func (a *API) Handler(others ...*API) http.Handler {
	rt := a.unknown("/")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if canonical(r.URL.EscapedPath()) {
			a.mux.ServeHTTP(w, r)
			return
		}
		owner := a
		if i := slices.IndexFunc(others, func(o *API) bool { return o.owns(r.URL.Path) }); i >= 0 {
			owner = others[i]
		}
		owner.serve(rt, w, r, owner.notFound)
	})
}

// owns tells whether a path lies below one of the API's prefixes.
func (a *API) owns(path string) bool {
	return slices.ContainsFunc(a.config.Prefixes, func(prefix string) bool {
		prefix = "/" + strings.Trim(prefix, "/")
		return prefix == "/" || path == prefix || strings.HasPrefix(path, prefix+"/")
	})
}

func canonical(p string) bool {
	if p != "/" {
		p = strings.TrimSuffix(p, "/")
	}
	return strings.HasPrefix(p, "/") && path.Clean(p) == p
}

func (a *API) unknown(path string) *route {
	return a.route(Operation{ID: "unknown", Access: Public, Path: path})
}

func (a *API) notFound(w *response, r *http.Request) {
	a.fail(w, r, NotFound("path %q not found", r.URL.Path))
}

// fallback answers what lies below prefix and is no operation: 404, or 405 with the methods that the path has.
func (a *API) fallback(prefix string) {
	prefix = "/" + strings.Trim(prefix, "/")
	rt := a.unknown(prefix)
	serve := func(w http.ResponseWriter, r *http.Request) {
		a.serve(rt, w, r, func(w *response, r *http.Request) {
			allowed := a.allowed(r)
			switch {
			case len(allowed) == 0:
				a.notFound(w, r)
			case r.Method == http.MethodOptions:
				w.Header().Set("Allow", strings.Join(allowed, ", "))
				w.WriteHeader(http.StatusNoContent)
			default:
				p := problem(http.StatusMethodNotAllowed, ReasonMethodNotAllowed, "method %s is not allowed on %q; use %s",
					[]any{r.Method, r.URL.Path, strings.Join(allowed, ", ")})
				p.Header = http.Header{"Allow": {strings.Join(allowed, ", ")}}
				a.fail(w, r, p)
			}
		})
	}
	patterns := []string{prefix + "/", prefix}
	if prefix == "/" {
		patterns = []string{"/"}
	}
	for _, pattern := range patterns {
		a.mux.HandleFunc(pattern, serve)
	}
}

// allowed lists the methods that the path of r takes.
func (a *API) allowed(r *http.Request) []string {
	var methods []string
	for method := range a.methods {
		probe := &http.Request{Method: method, URL: r.URL, Host: r.Host}
		if _, pattern := a.mux.Handler(probe); pattern != "" && strings.HasPrefix(pattern, method+" ") {
			methods = append(methods, method)
		}
	}
	if len(methods) == 0 {
		return nil
	}
	if slices.Contains(methods, http.MethodGet) && !slices.Contains(methods, http.MethodHead) {
		methods = append(methods, http.MethodHead)
	}
	if !slices.Contains(methods, http.MethodOptions) {
		methods = append(methods, http.MethodOptions)
	}
	slices.Sort(methods)
	return methods
}
