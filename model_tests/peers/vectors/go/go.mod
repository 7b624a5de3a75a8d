module vectors

go 1.23
