// Package kubeapi serves enough of the Kubernetes API for kubectl and client-go: health, version, discovery, and typed
// resources with get, list, watch, create, update, patch and delete. Objects are stored as they come, without
// defaulting or validation beyond names; nothing acts on them but whoever holds the Store.
package kubeapi

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// Resource is one type of objects.
type Resource struct {
	Group, Version, Plural, Singular, Kind string
	Namespaced                             bool
	Short                                  []string
	// Type is the Go type, for strategic merge patches.
	Type any
}

// APIVersion is the group and version as objects carry it.
func (r *Resource) APIVersion() string {
	if r.Group == "" {
		return r.Version
	}
	return r.Group + "/" + r.Version
}

// The resources that the simulation itself writes.
var (
	Nodes      = &Resource{Version: "v1", Plural: "nodes", Singular: "node", Kind: "Node", Short: []string{"no"}, Type: corev1.Node{}}
	Namespaces = &Resource{Version: "v1", Plural: "namespaces", Singular: "namespace", Kind: "Namespace", Short: []string{"ns"}, Type: corev1.Namespace{}}
	Pods       = &Resource{Version: "v1", Plural: "pods", Singular: "pod", Kind: "Pod", Namespaced: true, Short: []string{"po"}, Type: corev1.Pod{}}
	Services   = &Resource{Version: "v1", Plural: "services", Singular: "service", Kind: "Service", Namespaced: true, Short: []string{"svc"}, Type: corev1.Service{}}
)

var resources = []*Resource{
	Nodes, Namespaces, Pods, Services,
	{Version: "v1", Plural: "configmaps", Singular: "configmap", Kind: "ConfigMap", Namespaced: true, Short: []string{"cm"}, Type: corev1.ConfigMap{}},
	{Version: "v1", Plural: "secrets", Singular: "secret", Kind: "Secret", Namespaced: true, Type: corev1.Secret{}},
	{Version: "v1", Plural: "serviceaccounts", Singular: "serviceaccount", Kind: "ServiceAccount", Namespaced: true, Short: []string{"sa"}, Type: corev1.ServiceAccount{}},
	{Version: "v1", Plural: "events", Singular: "event", Kind: "Event", Namespaced: true, Short: []string{"ev"}, Type: corev1.Event{}},
	{Version: "v1", Plural: "persistentvolumes", Singular: "persistentvolume", Kind: "PersistentVolume", Short: []string{"pv"}, Type: corev1.PersistentVolume{}},
	{Version: "v1", Plural: "persistentvolumeclaims", Singular: "persistentvolumeclaim", Kind: "PersistentVolumeClaim", Namespaced: true, Short: []string{"pvc"}, Type: corev1.PersistentVolumeClaim{}},
	{Group: "apps", Version: "v1", Plural: "deployments", Singular: "deployment", Kind: "Deployment", Namespaced: true, Short: []string{"deploy"}, Type: appsv1.Deployment{}},
	{Group: "apps", Version: "v1", Plural: "daemonsets", Singular: "daemonset", Kind: "DaemonSet", Namespaced: true, Short: []string{"ds"}, Type: appsv1.DaemonSet{}},
	{Group: "apps", Version: "v1", Plural: "statefulsets", Singular: "statefulset", Kind: "StatefulSet", Namespaced: true, Short: []string{"sts"}, Type: appsv1.StatefulSet{}},
	{Group: "apps", Version: "v1", Plural: "replicasets", Singular: "replicaset", Kind: "ReplicaSet", Namespaced: true, Short: []string{"rs"}, Type: appsv1.ReplicaSet{}},
	{Group: "batch", Version: "v1", Plural: "jobs", Singular: "job", Kind: "Job", Namespaced: true, Type: batchv1.Job{}},
	{Group: "batch", Version: "v1", Plural: "cronjobs", Singular: "cronjob", Kind: "CronJob", Namespaced: true, Short: []string{"cj"}, Type: batchv1.CronJob{}},
	{Group: "coordination.k8s.io", Version: "v1", Plural: "leases", Singular: "lease", Kind: "Lease", Namespaced: true, Type: coordinationv1.Lease{}},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Plural: "clusterroles", Singular: "clusterrole", Kind: "ClusterRole", Type: rbacv1.ClusterRole{}},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Plural: "clusterrolebindings", Singular: "clusterrolebinding", Kind: "ClusterRoleBinding", Type: rbacv1.ClusterRoleBinding{}},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Plural: "roles", Singular: "role", Kind: "Role", Namespaced: true, Type: rbacv1.Role{}},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Plural: "rolebindings", Singular: "rolebinding", Kind: "RoleBinding", Namespaced: true, Type: rbacv1.RoleBinding{}},
	{Group: "storage.k8s.io", Version: "v1", Plural: "storageclasses", Singular: "storageclass", Kind: "StorageClass", Short: []string{"sc"}, Type: storagev1.StorageClass{}},
}

func findResource(group, version, plural string) *Resource {
	for _, r := range resources {
		if r.Group == group && r.Version == version && r.Plural == plural {
			return r
		}
	}
	return nil
}

// groups lists the named API groups, each with its one version.
func groups() [][2]string {
	var list [][2]string
	for _, r := range resources {
		g := [2]string{r.Group, r.Version}
		if r.Group != "" && !slices.Contains(list, g) {
			list = append(list, g)
		}
	}
	return append(list, [2]string{"authorization.k8s.io", "v1"}, [2]string{"authentication.k8s.io", "v1"})
}
