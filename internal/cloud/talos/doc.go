// Package talos turns what a tenant declares into Talos machine configurations, secrets and client credentials. It
// is built on Talos' own machinery, reaches no network and opens no files.
package talos
