// How the extension tests tell what they found: VS Code's own console is full of other things.

/** Beside the project, so that it is none of its files. */
export const REPORT = "../extension-tests.txt";
