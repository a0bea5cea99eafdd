//! Providers in a Deployment of their own, behind the socket proxy.
