// Package controller makes tenants what they are declared to be, and tells what they are.
//
// One controller acts, two observe. Each field has one writer; where several controllers write the same object,
// each reads it anew in its transaction and changes its own fields only.
//
//	tenant     acts: binds machines to slots, applies, scales, tears down.
//	prober     observes: asks each machine's Talos API.
//	status     observes: asks each tenant's Kubernetes API and etcd, and derives the status of tenants and node groups.
//
//	what                                                    writer
//	Machine.status but the stages removing and updating     prober
//	Machine.status.stage removing, updating, with its       tenant, for machines of a tenant, from setting the stage
//	  ready and lastError                                     until it sets another one or unbinds the machine
//	Tenant.status phase, available, ready, apiReady,        status
//	  controlPlaneReady, machines, kubernetesVersion,
//	  talosVersion
//	Tenant.status.controlPlaneEndpoint                      tenant
//	conditions Applied, Blocked, Drifted, MachinesMissing   tenant
//	conditions MachinesUnreachable, APINotReady,            status
//	  EtcdUnhealthy, PluginsPending
//	NodeGroup.status phase, ready, machines                 status
package controller
