"""`python -m keytide`: the command `keytide`, where scripts are not on the path."""

from keytide_command import main

if __name__ == "__main__":
    main()
