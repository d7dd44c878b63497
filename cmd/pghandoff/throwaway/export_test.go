package throwaway

// Fetch is what FindPrograms does where nothing is installed.
var Fetch = fetch
