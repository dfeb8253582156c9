package kubeapi

import (
	"context"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type userKey struct{}

func withUser(ctx context.Context, u User) context.Context {
	return context.WithValue(ctx, userKey{}, u)
}

func userFrom(ctx context.Context) User {
	u, _ := ctx.Value(userKey{}).(User)
	return u
}

func (s *Server) coreVersions(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, metav1.APIVersions{
		TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"},
		ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: r.Host}},
	})
}

func apiGroup(name, version string) metav1.APIGroup {
	v := metav1.GroupVersionForDiscovery{GroupVersion: name + "/" + version, Version: version}
	return metav1.APIGroup{Name: name, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v}
}

func (s *Server) groupList(w http.ResponseWriter, _ *http.Request) {
	list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, g := range groups() {
		list.Groups = append(list.Groups, apiGroup(g[0], g[1]))
	}
	writeJSON(w, http.StatusOK, list)
}

func (s *Server) group(w http.ResponseWriter, r *http.Request) {
	for _, g := range groups() {
		if g[0] == r.PathValue("group") {
			group := apiGroup(g[0], g[1])
			group.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
			writeJSON(w, http.StatusOK, group)
			return
		}
	}
	writeError(w, http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
}

func (s *Server) coreResources(w http.ResponseWriter, r *http.Request) {
	s.resourceList(w, "", r.PathValue("version"))
}

func (s *Server) groupResources(w http.ResponseWriter, r *http.Request) {
	s.resourceList(w, r.PathValue("group"), r.PathValue("version"))
}

var allVerbs = metav1.Verbs{"create", "delete", "get", "list", "patch", "update", "watch"}

func (s *Server) resourceList(w http.ResponseWriter, group, version string) {
	gv := (&Resource{Group: group, Version: version}).APIVersion()
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv}
	for _, r := range resources {
		if r.Group != group || r.Version != version {
			continue
		}
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: r.Plural, SingularName: r.Singular, Namespaced: r.Namespaced, Kind: r.Kind, Verbs: allVerbs, ShortNames: r.Short,
		})
		if r == Nodes || r == Namespaces || r == Pods {
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: r.Plural + "/status", Namespaced: r.Namespaced, Kind: r.Kind, Verbs: metav1.Verbs{"get", "patch", "update"},
			})
		}
	}
	for _, review := range reviews {
		if review.group == group && version == "v1" {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: review.plural, Kind: review.kind, Verbs: metav1.Verbs{"create"}})
		}
	}
	if len(list.APIResources) == 0 {
		writeError(w, http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
		return
	}
	writeJSON(w, http.StatusOK, list)
}

func (s *Server) openAPI2(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{
		"swagger": "2.0", "info": map[string]any{"title": "Kubernetes", "version": s.Version}, "paths": map[string]any{}, "definitions": map[string]any{},
	})
}

func (s *Server) openAPI3(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"paths": map[string]any{}})
}
